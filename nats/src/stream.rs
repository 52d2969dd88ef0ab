//! The stream that holds the log: made when missing, and compared with the ledger before anything
//! is added to it (SPEC L9, L11).

use std::time::Duration;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{
    Config, DiscardPolicy, Info, RawMessageErrorKind, RetentionPolicy, StorageType, Stream,
};
use ledger_projections::{log, retention};
use ledger_protocol::event::Event;
use ledger_protocol::id::EventId;
use sqlx::PgPool;

use crate::connection::Connection;
use crate::error::{database, in_time};
use crate::options::NatsOptions;
use crate::subject::{STREAM, patterns};
use crate::{Error, limits};

pub(crate) fn config(options: &NatsOptions) -> Config {
    let duplicate_window = if options.max_age.is_zero() {
        limits::DUPLICATE_WINDOW
    } else {
        limits::DUPLICATE_WINDOW.min(options.max_age)
    };
    Config {
        name: STREAM.to_owned(),
        description: Some("Every event of the ledger; sequence = position".to_owned()),
        subjects: patterns(),
        retention: RetentionPolicy::Limits,
        storage: StorageType::File,
        discard: DiscardPolicy::Old,
        num_replicas: options.replicas,
        max_age: options.max_age,
        max_bytes: options
            .bytes_max
            .map_or(-1, |most| i64::try_from(most).unwrap_or(i64::MAX)),
        max_messages: -1,
        max_messages_per_subject: -1,
        deny_delete: true,
        deny_purge: true,
        allow_direct: true,
        duplicate_window,
        ..Config::default()
    }
}

/// The stream, made unless it is there; its first sequence is then the first position that the
/// database has. What an older version of the ledger or other options left different is set right.
pub(crate) async fn ensure(
    connection: &Connection,
    options: &NatsOptions,
    pool: &PgPool,
) -> Result<Stream<Info>, Error> {
    let mut wanted = config(options);
    let found = in_time("JetStream", limits::ANSWER_WITHIN, async {
        match connection.jetstream.get_stream(STREAM).await {
            Ok(stream) => Ok(Some(stream)),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(answer)
                    if answer.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    Ok(None)
                }
                GetStreamErrorKind::JetStream(_)
                | GetStreamErrorKind::EmptyName
                | GetStreamErrorKind::InvalidStreamName
                | GetStreamErrorKind::Request => Err(Error::stream("find the stream", error)),
            },
        }
    })
    .await?;
    let Some(stream) = found else {
        let through = archived_through(pool).await?;
        wanted.first_sequence = (through > 0).then_some(through + 1);
        let made = in_time("JetStream", limits::ANSWER_WITHIN, async {
            let made = connection.jetstream.create_stream(wanted).await;
            made.map_err(|error| Error::stream("make the stream", error))
        })
        .await?;
        tracing::info!(stream = STREAM, "made the stream");
        return Ok(made);
    };
    if let Some(changed) = changes(&stream.cached_info().config, wanted) {
        in_time("JetStream", limits::ANSWER_WITHIN, async {
            let set = connection.jetstream.update_stream(&changed).await;
            set.map_err(|error| Error::stream("change the stream's settings", error))
        })
        .await?;
        tracing::info!(stream = STREAM, "changed the stream's settings");
    }
    Ok(stream)
}

/// The stream's settings with ours in them, if they differ. Patterns that others added stay, for
/// they may belong to a newer version that runs beside this one.
fn changes(current: &Config, wanted: Config) -> Option<Config> {
    let mut changed = current.clone();
    for pattern in wanted.subjects {
        if !changed.subjects.contains(&pattern) {
            changed.subjects.push(pattern);
        }
    }
    changed.num_replicas = wanted.num_replicas;
    changed.max_age = wanted.max_age;
    changed.max_bytes = wanted.max_bytes;
    // A convenience, so an operator's own setting stays; JetStream wants it within the age.
    changed.duplicate_window = match wanted.max_age {
        Duration::ZERO => current.duplicate_window,
        max_age => current.duplicate_window.min(max_age),
    };
    changed.deny_delete = true;
    changed.deny_purge = true;
    (changed != *current).then_some(changed)
}

/// The stream's last sequence, after comparing its last message with the ledger: a stream that
/// holds more than the ledger, or something else, is never written to.
pub(crate) async fn verify(stream: &Stream<Info>, pool: &PgPool) -> Result<u64, Error> {
    // The stream is asked first: what it has was committed before, so the ledger shows it.
    let state = info(stream).await?.state;
    let last = state.last_sequence;
    let head = database(async {
        let mut conn = pool.acquire().await?;
        Ok::<_, Error>(log::head(&mut conn).await?)
    })
    .await?;
    if last > head {
        return Err(Error::Ahead { stream: last, head });
    }
    let through = archived_through(pool).await?;
    if last < through {
        return Err(Error::Archived {
            stream: last,
            through,
        });
    }
    // A new stream, or one whose last event nothing here can be compared with.
    if last == 0 || last == through {
        return Ok(last);
    }
    let Some(found) = last_id(stream, last).await? else {
        // Its limits have taken the message; the sequence is all that is left.
        return Ok(last);
    };
    let expected = database(event_id(pool, last)).await?;
    if found != expected.to_string() {
        return Err(Error::Diverged {
            position: last,
            expected,
            found,
        });
    }
    Ok(last)
}

/// The last position that has left the database.
pub(crate) async fn archived_through(pool: &PgPool) -> Result<u64, Error> {
    database(async {
        let mut conn = pool.acquire().await?;
        Ok::<_, Error>(retention::archived_through(&mut conn).await?)
    })
    .await
}

/// What the stream has now.
pub(crate) async fn info(stream: &Stream<Info>) -> Result<Info, Error> {
    in_time("JetStream", limits::ANSWER_WITHIN, async {
        stream
            .get_info()
            .await
            .map_err(|error| Error::stream("describe the stream", error))
    })
    .await
}

async fn last_id(stream: &Stream<Info>, sequence: u64) -> Result<Option<String>, Error> {
    in_time("JetStream", limits::ANSWER_WITHIN, async {
        match stream.get_raw_message(sequence).await {
            Ok(message) => {
                let id = message
                    .headers
                    .get(NATS_MESSAGE_ID)
                    .map(ToString::to_string);
                Ok(Some(id.unwrap_or_default()))
            }
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(Error::stream("read the stream's last message", error)),
        }
    })
    .await
}

async fn event_id(pool: &PgPool, position: u64) -> Result<EventId, Error> {
    let mut conn = pool.acquire().await?;
    let found = log::read(&mut conn, position - 1, 1).await?.pop();
    let recorded = found
        .filter(|recorded| recorded.position == position)
        .ok_or(Error::Gap { position })?;
    let event =
        Event::decode(&recorded.bytes).map_err(|source| Error::Unreadable { position, source })?;
    Ok(event.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_settings_are_set_right_and_patterns_of_others_stay() {
        let mut options = NatsOptions::new("nats://127.0.0.1", "one", "/ledger");
        let mut current = config(&options);
        assert_eq!(changes(&current, config(&options)), None);
        current
            .subjects
            .retain(|pattern| pattern != "node.deleted.*.*");
        current.subjects.push("batch.withdrawn.*".to_owned());
        options.max_age = Duration::from_mins(1);
        let changed = changes(&current, config(&options)).unwrap();
        assert!(changed.subjects.contains(&"node.deleted.*.*".to_owned()));
        assert!(changed.subjects.contains(&"batch.withdrawn.*".to_owned()));
        assert_eq!(changed.duplicate_window, Duration::from_mins(1));
    }
}
