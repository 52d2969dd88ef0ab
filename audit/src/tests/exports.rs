//! Exports of real ledgers, and every way to damage one (SPEC U2).

use std::ops::RangeInclusive;

use futures_util::future::join_all;
use ledger_projections::log_tree;
use ledger_protocol::event::Event;
use ledger_protocol::export::{End, FRAME_BYTES, Frame, Header, Kind, MAGIC};
use ledger_protocol::merkle::leaf_hash;
use ledger_protocol::tlog::{
    Checkpoint, Cosigner, EntryBundle, Note, RightEdge, Signer as LogSigner, TreeHead,
};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::{Archive, Look, Trusted, Verified, export, verify};

const ORIGIN: &str = "ledger.example/log";

fn log_key(number: u8) -> LogSigner {
    let key = SigningKey::from_bytes(&[number; 32]);
    LogSigner::new(ORIGIN.parse().unwrap(), key)
}

pub(super) fn trusted() -> Trusted {
    Trusted::new(log_key(1).verifier_key(), Vec::new(), 0).unwrap()
}

fn signed(head: TreeHead, by: &LogSigner) -> Note {
    let text = Checkpoint::new(ORIGIN, head).unwrap().to_string();
    let signature = by.sign(&text).unwrap();
    Note::new(text, vec![signature]).unwrap()
}

/// Hashes the log that there is, and signs it at these sizes and at its end.
pub(super) async fn sign_log(pool: &PgPool, every: u64) -> Vec<Note> {
    let mut conn = pool.acquire().await.unwrap();
    let (mut edge, mut notes, by) = (RightEdge::new(), Vec::new(), log_key(1));
    loop {
        let page = ledger_projections::log::read(&mut conn, edge.size(), 1_000);
        let page = page.await.unwrap();
        let mut tiles = Vec::new();
        for event in &page {
            tiles.extend(edge.push(leaf_hash(&event.bytes)).unwrap());
            if edge.size().is_multiple_of(every) {
                notes.push(signed(edge.head(), &by));
            }
        }
        let is_over = page.is_empty();
        if is_over {
            tiles.extend(edge.partial_tiles_since(0));
        }
        assert_eq!(log_tree::write(&mut conn, &tiles).await.unwrap(), None);
        if is_over {
            break;
        }
    }
    if !edge.size().is_multiple_of(every) {
        notes.push(signed(edge.head(), &by));
    }
    for note in &notes {
        let size = Checkpoint::parse(note.text()).unwrap().head().size;
        let published = log_tree::publish(&mut conn, size, &note.to_string()).await;
        assert!(published.unwrap());
    }
    notes
}

pub(super) async fn exported(pool: &PgPool) -> Vec<u8> {
    exported_with(pool, None).await
}

pub(super) async fn exported_with(pool: &PgPool, archive: Option<&Archive>) -> Vec<u8> {
    let mut file = Vec::new();
    let exported = export(pool, archive, &mut file, |_, _| {}).await.unwrap();
    assert_eq!(exported.bytes, file.len() as u64);
    file
}

pub(super) fn verified(file: &[u8], trusted: &Trusted) -> Verified {
    verify(file, trusted, Look::Everything, &mut |_, _| {}).unwrap()
}

/// What is told of a file that must not be believed.
fn told(file: &[u8]) -> Vec<String> {
    let verified = verified(file, &trusted());
    assert!(!verified.is_clean());
    verified.problems.iter().map(ToString::to_string).collect()
}

/// An export taken apart, for whoever alters one.
#[derive(Clone)]
struct Parts {
    records: Vec<(Kind, Vec<u8>)>,
}

impl Parts {
    fn of(file: &[u8]) -> Self {
        let mut rest = file.strip_prefix(MAGIC).unwrap();
        let mut records = Vec::new();
        while let Some((frame, after)) = rest.split_first_chunk::<FRAME_BYTES>() {
            let frame = Frame::decode(*frame).unwrap();
            let (payload, after) = after.split_at(frame.length);
            records.push((frame.kind, payload.to_vec()));
            rest = after;
        }
        Self { records }
    }

    /// The file, with an end that fits it.
    fn file(&self) -> Vec<u8> {
        let (mut file, mut digest) = (MAGIC.to_vec(), Sha256::new_with_prefix(MAGIC));
        for (kind, payload) in &self.records {
            let mut payload = payload.clone();
            if *kind == Kind::End {
                let mut end: End = canonical::decode(&payload).unwrap();
                end.digest = digest.clone().finalize().to_vec();
                end.events = self.events().len() as u64;
                payload = canonical::encode(&end).unwrap();
            }
            let frame = Frame::of(*kind, &payload).unwrap().encode();
            file.extend(frame);
            file.extend(&payload);
            digest.update(frame);
            if *kind != Kind::Entries {
                digest.update(&payload);
            }
        }
        file
    }

    fn events(&self) -> Vec<Vec<u8>> {
        let bundles = self
            .records
            .iter()
            .filter(|(kind, _)| *kind == Kind::Entries);
        bundles
            .flat_map(|(_, bytes)| EntryBundle::first(bytes, 256).map(<[u8]>::to_vec))
            .collect()
    }

    /// The bundle, or the tile of hashes, in which a position is, and its place there.
    fn at(&mut self, kind: Kind, position: usize) -> (&mut Vec<u8>, usize) {
        let mut all = self.records.iter_mut().filter(|(own, _)| *own == kind);
        let (_, payload) = all.nth((position - 1) / 256).unwrap();
        (payload, (position - 1) % 256)
    }

    /// Changes the events of the bundle with this position, not their hashes.
    fn change_bundle(&mut self, position: usize, change: impl FnOnce(&mut Vec<Vec<u8>>, usize)) {
        let (payload, place) = self.at(Kind::Entries, position);
        let entries = EntryBundle::first(payload, 256);
        let mut entries: Vec<_> = entries.map(<[u8]>::to_vec).collect();
        change(&mut entries, place);
        let mut bytes = Vec::new();
        for entry in entries {
            bytes.extend(u16::try_from(entry.len()).unwrap().to_be_bytes());
            bytes.extend(&entry);
        }
        *payload = bytes;
    }

    /// Another log under the same checkpoints, with hashes that fit it: what can be done without
    /// the log's key.
    fn with_events(&self, events: &[Vec<u8>]) -> Self {
        let mut records = Vec::new();
        let mut notes = self
            .records
            .iter()
            .filter(|(kind, _)| *kind == Kind::Checkpoint);
        let size = |note: &[u8]| {
            let note = Note::parse(note).unwrap();
            Checkpoint::parse(note.text()).unwrap().head().size
        };
        let mut next = notes.next();
        let mut done = 0;
        for (kind, payload) in &self.records {
            match kind {
                Kind::Header => {
                    let mut header: Header = canonical::decode(payload).unwrap();
                    header.size = events.len() as u64;
                    records.push((*kind, canonical::encode(&header).unwrap()));
                }
                Kind::Last => {
                    for bundle in events.chunks(256) {
                        let entries = bundle.iter().map(Vec::as_slice).collect();
                        let entries = EntryBundle::new(entries).unwrap();
                        let hashes: Vec<_> = entries.leaf_hashes().collect();
                        records.push((Kind::Entries, entries.encode()));
                        records.push((Kind::Hashes, hashes.concat()));
                        done += bundle.len() as u64;
                        while let Some(note) = next.filter(|note| size(&note.1) <= done) {
                            records.push(note.clone());
                            next = notes.next();
                        }
                    }
                    records.push((*kind, payload.clone()));
                }
                Kind::Trust | Kind::End => records.push((*kind, payload.clone())),
                Kind::Entries | Kind::Hashes | Kind::Checkpoint => {}
            }
        }
        Self { records }
    }
}

fn signer() -> Arc<Signer> {
    let root: Arc<dyn RootKey> = Arc::new(HeldRoot::new(SigningKey::from_bytes(&[21; 32])));
    Arc::new(Signer::new(root, Vec::new(), Clock::manual(NOW)))
}

/// A ledger of 10,000 events and more, signed, with approved batches and all kinds of ends.
async fn large_log(pool: &PgPool) -> u64 {
    let signer = signer();
    signer.renew().await.unwrap();
    let world = World::signing(pool.clone(), Some(signer.clone()));
    world.live_a_little().await;
    signer.publish(pool, &Policy::default(), 0).await.unwrap();
    let lives = (0..32).map(|number| {
        let world = &world;
        async move {
            let node = world.node(&format!("node-{number}")).await;
            let epoch = world.open_session(node).await;
            let applied = world.ledger.apply_generation(&world.actor, node, epoch, 1);
            applied.await.unwrap();
            for command in 0..80 {
                let id = world.enqueue(node, &format!("api:{command}")).await;
                let sent = world.ledger.dispatch(&world.actor, node, id, epoch);
                sent.await.unwrap();
                world.report(node, epoch, id, UpdateState::Running).await;
                world.report(node, epoch, id, UpdateState::Succeeded).await;
            }
        }
    });
    join_all(lives).await;
    let mut conn = pool.acquire().await.unwrap();
    let size = ledger_projections::log::head(&mut conn).await.unwrap();
    assert!(size > 10_000, "{size}");
    size
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_ten_thousand_events_are_exported_and_verified_and_no_damage_passes(pool: PgPool) {
    let size = large_log(&pool).await;
    let every = 700;
    let notes = sign_log(&pool, every).await;
    let file = exported(&pool).await;
    let mut trusted = trusted();
    trusted.against(&notes[3]).unwrap();
    let whole = verified(&file, &trusted);
    assert_eq!(whole.problems.iter().map(ToString::to_string).next(), None);
    assert!(whole.is_clean());
    assert_eq!(
        (whole.events, whole.checkpoints),
        (size, notes.len() as u64)
    );
    assert_eq!((whole.extends, whole.trust_bundles), (Some(4 * every), 1));
    assert_eq!(whole.head.map(|head| head.size), Some(size));
    let checked = check(&pool, None, &Registry::builtin()).await.unwrap();
    assert_eq!(
        (whole.commands, whole.live),
        (checked.commands, checked.live)
    );

    let last = usize::try_from(size).unwrap();
    let parts = Parts::of(&file);
    let events = parts.events();
    assert_eq!(events.len(), last);
    for position in [1, 2, 255, 256, 257, 5_000, 9_999, last] {
        let exact = |parts: &Parts, why: &str| {
            let told = told(&parts.file());
            let expected = format!("position {position}: {why}");
            assert!(told[0].starts_with(&expected), "{told:?}, not {expected}");
        };
        let other = "the event is not the one that was logged: its hash is ";
        // A byte of an event, of its hash, or of its length.
        let mut flipped = parts.clone();
        let changed = {
            let mut event = events[position - 1].clone();
            event[7] ^= 0x10;
            event
        };
        flipped.change_bundle(position, |entries, place| entries[place] = changed);
        exact(&flipped, other);
        let mut flipped = parts.clone();
        let (hashes, place) = flipped.at(Kind::Hashes, position);
        hashes[32 * place + 31] ^= 1;
        exact(&flipped, other);
        // An event that is left out, put in, or changes places with the next, the hashes as before.
        let mut dropped = parts.clone();
        dropped.change_bundle(position, |entries, place| _ = entries.remove(place));
        let ends_bundle = position % 256 == 0 || position == last;
        let short = "the bundle of events ends before this event does";
        exact(&dropped, if ends_bundle { short } else { other });
        let mut inserted = parts.clone();
        let extra = events[1_000].clone();
        inserted.change_bundle(position, |entries, place| entries.insert(place, extra));
        exact(&inserted, other);
        if !ends_bundle {
            let mut swapped = parts.clone();
            swapped.change_bundle(position, |entries, place| entries.swap(place, place + 1));
            exact(&swapped, other);
        }

        // The same with hashes that fit: only a checkpoint's root tells, or a rule.
        let (first, end) = within(position, every, size);
        let range = |events: &[Vec<u8>]| {
            let file = parts.with_events(events).file();
            let found = verified(&file, &trusted).first_bad_position();
            assert!(
                (first..=position as u64).contains(&found.unwrap()),
                "{found:?}"
            );
            let (told, expected) = (told(&file), format!("positions {first} to {end}: "));
            let is_told = told.iter().any(|told| told.starts_with(&expected));
            assert!(is_told, "{told:?}, not {expected}");
        };
        let mut altered = events.clone();
        altered[position - 1] = altered_event(&altered[position - 1]);
        range(&altered);
        if position < last {
            let mut swapped = events.clone();
            swapped.swap(position - 1, position);
            if !(position as u64).is_multiple_of(every) {
                range(&swapped);
            }
        }
        let mut dropped = events.clone();
        dropped.remove(position - 1);
        range(&dropped);
        let mut inserted = events.clone();
        inserted.insert(position - 1, events[1_000].clone());
        range(&inserted);
    }
}

/// The range between checkpoints in which a position is.
fn within(position: usize, every: u64, size: u64) -> (u64, u64) {
    let first = (position as u64 - 1) / every * every + 1;
    (first, (first + every - 1).min(size))
}

/// The event as if it had been a microsecond later.
fn altered_event(bytes: &[u8]) -> Vec<u8> {
    let mut event = Event::decode(bytes).unwrap();
    event.at = event.at.plus_micros(1);
    event.encode().unwrap()
}

/// A small ledger with three checkpoints.
async fn small_log(pool: &PgPool) -> (Vec<u8>, Vec<Note>) {
    World::new(pool.clone()).live_a_little().await;
    let notes = sign_log(pool, 13).await;
    (exported(pool).await, notes)
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_no_flipped_byte_of_an_export_passes(pool: PgPool) {
    let (file, _) = small_log(&pool).await;
    assert!(verified(&file, &trusted()).is_clean());
    // Where the bytes of each event are.
    let parts = Parts::of(&file);
    let first = parts.events().first().unwrap().clone();
    let mut offset = file
        .windows(first.len())
        .position(|bytes| bytes == first)
        .unwrap()
        - 2;
    let mut places: Vec<(RangeInclusive<usize>, u64)> = Vec::new();
    for (position, event) in (1..).zip(parts.events()) {
        let end = offset + 2 + event.len();
        places.push((offset..=end - 1, position));
        offset = end;
    }
    for byte in 0..file.len() {
        let mut flipped = file.clone();
        flipped[byte] ^= 1 << (byte % 8);
        let verified = verified(&flipped, &trusted());
        assert!(!verified.is_clean(), "byte {byte}");
        let event = places.iter().find(|(bytes, _)| bytes.contains(&byte));
        if let Some((_, position)) = event {
            let found = verified.first_bad_position();
            assert_eq!(found, Some(*position), "byte {byte}");
        }
    }
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_no_truncated_or_longer_export_passes(pool: PgPool) {
    let (file, notes) = small_log(&pool).await;
    for length in 0..file.len() {
        let told = told(&file[..length]);
        let foreign = length < MAGIC.len();
        let expected = if foreign { "byte 0, " } else { "byte " };
        assert!(told[0].starts_with(expected), "{length}: {told:?}");
        if !foreign {
            assert!(told[0].contains("the file ends here"), "{length}: {told:?}");
        }
    }
    let longer = [file.as_slice(), b"\n"].concat();
    let (bytes, events) = (file.len(), Parts::of(&file).events().len());
    let expected =
        format!("byte {bytes}, after position {events}: bytes follow the end of the export");
    assert_eq!(told(&longer), [expected]);

    // An older export is an honest one; that it is older shows against a newer checkpoint.
    let parts = Parts::of(&file);
    let mut older = parts.with_events(&parts.events()[..13]);
    older.records.retain(|(kind, _)| *kind != Kind::Checkpoint);
    for (kind, payload) in &mut older.records {
        if *kind == Kind::Last {
            *payload = notes[0].to_string().into_bytes();
        }
        if *kind == Kind::End {
            let mut end: End = canonical::decode(payload).unwrap();
            end.checkpoints = 1;
            *payload = canonical::encode(&end).unwrap();
        }
    }
    let older = older.file();
    assert!(verified(&older, &trusted()).is_clean());
    let mut trusted = trusted();
    trusted.against(notes.last().unwrap()).unwrap();
    let verified = verified(&older, &trusted);
    assert_eq!(
        verified.problems[0].to_string(),
        format!(
            "positions 14 to {events}: missing: the checkpoint that the log must extend has them"
        )
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_only_the_logs_own_key_vouches_for_an_export(pool: PgPool) {
    let (file, notes) = small_log(&pool).await;
    let parts = Parts::of(&file);
    let head = |note: &[u8]| {
        let note = Note::parse(note).unwrap();
        *Checkpoint::parse(note.text()).unwrap().head()
    };
    for (kind, after) in [(Kind::Checkpoint, 13), (Kind::Last, parts.events().len())] {
        let mut forged = parts.clone();
        let mut all = forged.records.iter_mut().filter(|(own, _)| *own == kind);
        let (_, payload) = all.next().unwrap();
        *payload = signed(head(payload), &log_key(2)).to_string().into_bytes();
        let told = told(&forged.file());
        let expected = "the checkpoint has no signature by a key that is known";
        assert!(told[0].ends_with(expected), "{told:?}");
        assert!(told[0].contains("after position "), "{after}: {told:?}");
    }

    // The same history under another name, and another history under the same key.
    let key = SigningKey::from_bytes(&[1; 32]);
    let other = LogSigner::new("other.example".parse().unwrap(), key);
    let other = Trusted::new(other.verifier_key(), Vec::new(), 0).unwrap();
    let verified_by_other = verified(&file, &other);
    assert!(verified_by_other.problems[0].to_string().ends_with(
        "the file says that it is of the log `ledger.example/log`, not of `other.example`"
    ));
    let mut head = head(notes[1].to_string().as_bytes());
    head.root[0] ^= 1;
    let mut forked = trusted();
    forked.against(&signed(head, &log_key(1))).unwrap();
    assert_eq!(
        verified(&file, &forked).problems[0].to_string(),
        "positions 1 to 26: the log does not extend the one that the checkpoint of size 26 was \
         made of: its first 26 events have another root"
    );
    assert!(trusted().against(&signed(head, &log_key(2))).is_err());
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_a_quorum_of_witnesses_is_asked_of_the_last_checkpoint(pool: PgPool) {
    let (file, notes) = small_log(&pool).await;
    let witness = |number: u8| {
        let name = format!("witness-{number}").parse().unwrap();
        Cosigner::new(name, SigningKey::from_bytes(&[number; 32]))
    };
    let last = notes.last().unwrap();
    let checkpoint = Checkpoint::parse(last.text()).unwrap();
    let cosigned = witness(31).cosign(&checkpoint, 1_700_000_000).unwrap();
    let cosigned = last.clone().with(vec![cosigned]).unwrap();
    let mut parts = Parts::of(&file);
    for (kind, payload) in &mut parts.records {
        if *kind == Kind::Last {
            *payload = cosigned.to_string().into_bytes();
        }
    }
    let asking = |quorum| {
        let keys = [31, 32].map(|number| witness(number).verifier_key());
        Trusted::new(log_key(1).verifier_key(), keys.to_vec(), quorum).unwrap()
    };
    let enough = verified(&parts.file(), &asking(1));
    assert!(enough.is_clean());
    let by: Vec<_> = enough.cosigned.iter().map(|one| one.by.as_str()).collect();
    assert_eq!(
        (by, enough.cosigned[0].at_seconds),
        (vec!["witness-31"], 1_700_000_000)
    );
    let too_few = verified(&parts.file(), &asking(2));
    assert!(
        too_few.problems[0]
            .to_string()
            .ends_with("the checkpoint is cosigned by 1 witnesses that are known; 2 must be")
    );
}

#[sqlx::test(migrator = "ledger_migrations::MIGRATOR")]
async fn u2_what_was_changed_in_the_database_shows_at_its_position(pool: PgPool) {
    let error = export(&pool, None, Vec::new(), |_, _| {})
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NoCheckpoint), "{error:?}");
    small_log(&pool).await;
    // Not the log's word but one of the same length: the event still decodes.
    let changed =
        "UPDATE events SET body = set_byte(body, length(body) - 1, 77) WHERE position = 5";
    sql(&pool, changed).await;
    let file = exported(&pool).await;
    let told = told(&file);
    assert!(
        told[0].starts_with("position 5: the event is not the one that was logged"),
        "{told:?}"
    );
    sql(&pool, "DELETE FROM events WHERE position = 4").await;
    let error = export(&pool, None, Vec::new(), |_, _| {})
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Missing { position: 4 }), "{error:?}");
}

#[test]
fn u2_a_file_that_is_no_export_is_told_by_its_bytes_and_its_lengths_are_not_believed() {
    let not =
        "the file is no export of a ledger: it does not begin with `command-ledger export v1`";
    assert_eq!(told(b""), [format!("byte 0, before position 1: {not}")]);
    assert_eq!(
        told(&[0; 5_000]),
        [format!("byte 0, before position 1: {not}")]
    );
    let with = |bytes: &[u8]| [MAGIC.as_slice(), bytes].concat();
    assert_eq!(
        told(&with(&[1, 255, 255, 255, 255])),
        ["byte 25, before position 1: a header has 4294967295 bytes; at most 16384 are allowed"]
    );
    assert_eq!(
        told(&with(&[9, 0, 0, 0, 0])),
        ["byte 25, before position 1: a record has the unknown type 9"]
    );
    assert_eq!(
        told(&with(&[3, 0, 0, 0, 0])),
        ["byte 25, before position 1: a bundle of events stands where the header must come"]
    );
    assert_eq!(
        told(&with(&[1, 0, 0, 0, 9, 0])),
        ["byte 31, before position 1: the file ends here, where the rest of a record must come"]
    );
    let header = Header {
        origin: ORIGIN.to_owned(),
        size: u64::MAX,
    };
    let header = canonical::encode(&header).unwrap();
    let frame = Frame::of(Kind::Header, &header).unwrap().encode();
    let told = told(&with(&[frame.as_slice(), &header].concat()));
    assert!(told[0].contains("more than a log can have"), "{told:?}");
}
