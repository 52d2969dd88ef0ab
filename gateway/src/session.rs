//! The driver of one session: a WebSocket on one side, the ledger on the other, and between them
//! the machine of `ledger_protocol::session`, which decides.
//!
//! Reading and writing go on side by side, so that a daemon that does not read is still heard,
//! and is found out by its full queue.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use ledger_protocol::event::JournalLost;
use ledger_protocol::frame::JournalEntry;
use ledger_protocol::id::NodeId;
use ledger_protocol::limits::FRAME_BYTES_MAX;
use ledger_protocol::node::OpenSession;
use ledger_protocol::refusal::Refusal;
use ledger_protocol::session::{Close, Effect, Message, Peer, Session};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_tungstenite::tungstenite;
use tracing::{debug, info, warn};

use crate::batches;
use crate::dispatcher;
use crate::gateway::Shared;
use crate::http::Socket;
use crate::limits;
use crate::trust::News;

mod complaints;
mod goodbye;
mod handle;
mod work;

pub(crate) use handle::Handle;

use complaints::Complaints;
use goodbye::say_goodbye;
use handle::{Inbox, encode};
use work::{Done, Work, Works};

/// Runs a session from its first frame to the record of its end.
pub(crate) async fn run(
    shared: &Arc<Shared>,
    mut socket: Socket,
    peer: Peer,
    admission: OwnedSemaphorePermit,
) {
    let node = peer.node_id;
    let machine = Session::new(peer, shared.terms.clone());
    let mut driver = Driver {
        shared,
        machine,
        node,
        started: Instant::now(),
        epoch: 0,
        complaints: Arc::default(),
        // Before anything is read, so that nothing is missed.
        news: shared.trust.news(),
        exchanges: Arc::new(Semaphore::new(limits::EXCHANGES_PER_SESSION_MAX)),
    };
    let greeted = tokio::select! {
        greeted = driver.greet(&mut socket) => greeted,
        () = shared.shutdown.cancelled() => Err(Close::going_away()),
    };
    let greeted = greeted.and_then(|hello| {
        let place = shared.sessions.clone().try_acquire_owned();
        let full = |_| Close::try_again("the gateway has as many sessions as it may have");
        Ok((hello, place.map_err(full)?))
    });
    let ((open, entries), _place) = match greeted {
        Ok(greeted) => greeted,
        Err(close) => {
            info!(%node, %close, "a session did not open");
            return say_goodbye(socket, &close).await;
        }
    };

    // The dispatcher knows of the session before the ledger does, so that no cancel that is
    // committed after the session's opening is missed.
    let session = shared.session_number();
    let (handle, inbox) = Handle::new();
    let opening = dispatcher::Message::Opening {
        handle: handle.clone(),
        journal: open.journal_id,
        peer: driver.machine.peer().clone(),
        session,
    };
    driver.tell(opening).await;
    let opened = driver.open(session, open, entries).await;
    drop(admission);
    let (socket, close) = match opened {
        Ok(effects) => driver.hold(socket, effects, &handle, inbox).await,
        Err(close) => (Some(socket), close),
    };
    driver
        .tell(dispatcher::Message::Closed { node, session })
        .await;
    info!(%node, epoch = driver.epoch, %close, "session closed");
    let goodbye = async {
        if let Some(socket) = socket {
            say_goodbye(socket, &close).await;
        }
    };
    tokio::join!(driver.record_end(&close), goodbye);
}

struct Driver<'a> {
    shared: &'a Arc<Shared>,
    machine: Session,
    node: NodeId,
    started: Instant,
    /// 0 before the ledger has opened the session.
    epoch: u64,
    complaints: Arc<Complaints>,
    news: News,
    /// Room for questions that wait for the keeper of secrets; reports go on where nobody keeps any.
    exchanges: Arc<Semaphore>,
}

impl Driver<'_> {
    async fn tell(&self, message: dispatcher::Message) {
        // Only the end of the dispatcher, at shutdown, closes its queue.
        let _ = self.shared.dispatcher.send(message).await;
    }

    /// Waits for the first frame.
    async fn greet(
        &mut self,
        socket: &mut Socket,
    ) -> Result<(OpenSession, Vec<JournalEntry>), Close> {
        loop {
            let deadline = self.started + self.machine.next_tick();
            let effects = match timeout_at(deadline, socket.next()).await {
                Ok(message) => self.receive(message)?,
                Err(_) => self
                    .machine
                    .tick(self.started.elapsed(), self.shared.ledger.now()),
            };
            for effect in effects {
                match effect {
                    Effect::Open { open, entries } => return Ok((open, entries)),
                    Effect::Close(close) => return Err(close),
                    // Before the session is open the machine asks for nothing else.
                    Effect::Report(_)
                    | Effect::ApplyGeneration(_)
                    | Effect::SendSpec
                    | Effect::SendTrust { .. }
                    | Effect::Exchange(_)
                    | Effect::RecordTrust(_)
                    | Effect::Send(_) => {}
                }
            }
        }
    }

    /// Opens the session in the ledger; answers what its beginning asks for.
    async fn open(
        &mut self,
        session: u64,
        open: OpenSession,
        entries: Vec<JournalEntry>,
    ) -> Result<Vec<Effect>, Close> {
        let (ledger, node) = (&self.shared.ledger, self.node);
        if !self.shared.lease.is_known() {
            return Err(Close::try_again(
                "the ledger does not know this gateway yet",
            ));
        }
        let not_read = |error: ledger_projections::Error| {
            let error = &error as &dyn std::error::Error;
            warn!(%node, error, "a session could not be opened");
            Close::try_again("the ledger is not available")
        };
        let trusted = self.machine.trust_version();
        let bundles = self.shared.trust.above(ledger, trusted).await;
        let bundles = bundles.map_err(not_read)?;
        let opened = match ledger
            .open_session(&self.shared.actor, node, open, entries)
            .await
        {
            Ok(opened) => opened,
            Err(ledger::Error::Refused(Refusal::CertificateReplaced(_))) => {
                warn!(%node, "a daemon shows a certificate that was replaced when its node joined anew");
                return Err(Close::certificate_replaced());
            }
            Err(ledger::Error::Refused(Refusal::CertificateRevoked(_))) => {
                warn!(%node, "a daemon shows a certificate that was revoked");
                return Err(Close::certificate_revoked());
            }
            Err(ledger::Error::Refused(refusal)) => {
                return Err(Close::policy(&refusal.to_string()));
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(%node, error, "a session could not be opened");
                return Err(Close::try_again("the ledger is not available"));
            }
        };
        // Known from here on, so that the end of the session is recorded.
        self.epoch = opened.node.epoch;
        let batches = batches::named(ledger, &opened.replay).await;
        self.machine.bring(bundles, batches.map_err(not_read)?);
        info!(%node, epoch = self.epoch, replayed = opened.replay.len(), "session opened");
        if let Some(JournalLost::Behind | JournalLost::Copied) = opened.journal_lost {
            let epoch = self.epoch;
            warn!(
                %node, epoch, journal = ?opened.journal_lost,
                "two daemons have one identity and copies of one state folder, or an old copy was put back"
            );
        }
        let replayed = |command: &ledger_protocol::command::Command| dispatcher::Replayed {
            command: command.id,
            is_cancelled: command.cancel_requested_at.is_some(),
        };
        let told = dispatcher::Message::Opened {
            epoch: self.epoch,
            node,
            replay: opened.replay.iter().map(replayed).collect(),
            session,
        };
        self.tell(told).await;
        let elapsed = self.started.elapsed();
        Ok(self
            .machine
            .opened(&opened.node, &opened.replay, elapsed, ledger.now()))
    }

    /// Holds the open session until something ends it.
    async fn hold(
        &mut self,
        socket: Socket,
        effects: Vec<Effect>,
        handle: &Handle,
        inbox: Inbox,
    ) -> (Option<Socket>, Close) {
        let Inbox { mut frames, closes } = inbox;
        let mut works = Works::new();
        // What is replayed is written before the queue, which may be smaller.
        let mut first = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send(frame) => match encode(&frame) {
                    Ok(bytes) => first.push(bytes),
                    Err(close) => return (Some(socket), close),
                },
                other => {
                    if let Err(close) = self.perform(other, handle, &mut works) {
                        return (Some(socket), close);
                    }
                }
            }
        }
        let (mut sink, mut stream) = socket.split();
        let close = tokio::select! {
            close = self.read(&mut stream, handle, closes, works) => close,
            close = write(&mut sink, first, &mut frames) => close,
        };
        (sink.reunite(stream).ok(), close)
    }

    async fn read(
        &mut self,
        stream: &mut SplitStream<Socket>,
        handle: &Handle,
        mut closes: mpsc::Receiver<Close>,
        mut works: Works,
    ) -> Close {
        let shared = self.shared;
        let mut shutdown = pin!(shared.shutdown.cancelled());
        let mut tick = pin!(sleep_until(self.started + self.machine.next_tick()));
        loop {
            let free = self.exchanges.available_permits();
            let exchanges = limits::EXCHANGES_PER_SESSION_MAX.saturating_sub(free);
            let has_room = works.len() < limits::WORKS_PER_SESSION_MAX + exchanges;
            let effects = tokio::select! {
                () = &mut shutdown => return Close::going_away(),
                close = closes.recv() => {
                    return close.unwrap_or_else(|| Close::disconnected("nobody holds the session"));
                }
                Some(done) = works.next() => match self.finish(done, handle) {
                    Ok(effects) => effects,
                    Err(close) => return close,
                },
                message = stream.next(), if has_room => match self.receive(message) {
                    Ok(effects) => effects,
                    Err(close) => return close,
                },
                () = handle.spec_change(), if has_room => vec![Effect::SendSpec],
                Ok(()) = self.news.changed(), if has_room => {
                    works.push(Box::pin(self.work().read_trust(self.machine.trust_version(), false)));
                    continue;
                }
                () = &mut tick => {
                    let elapsed = self.started.elapsed();
                    if !has_room {
                        // It is not the daemon's silence when the gateway does not listen.
                        self.machine.heard(elapsed);
                    }
                    self.machine.tick(elapsed, shared.ledger.now())
                }
            };
            for effect in effects {
                if let Err(close) = self.perform(effect, handle, &mut works) {
                    return close;
                }
            }
            if tick.is_elapsed() {
                tick.as_mut().reset(self.started + self.machine.next_tick());
            }
        }
    }

    /// Hands what came over the socket to the machine.
    fn receive(
        &mut self,
        message: Option<Result<tungstenite::Message, tungstenite::Error>>,
    ) -> Result<Vec<Effect>, Close> {
        let message = message.ok_or_else(|| Close::disconnected("the connection ended"))?;
        let elapsed = self.started.elapsed();
        let now = self.shared.ledger.now();
        match message.map_err(|error| ended(&error))? {
            tungstenite::Message::Binary(bytes) => {
                if self.epoch > 0 && bytes.len() > FRAME_BYTES_MAX {
                    self.complain(bytes.len());
                }
                Ok(self.machine.receive(Message::Binary(&bytes), elapsed, now))
            }
            tungstenite::Message::Text(_) => Ok(self.machine.receive(Message::Text, elapsed, now)),
            tungstenite::Message::Ping(_) | tungstenite::Message::Pong(_) => {
                self.machine.heard(elapsed);
                Ok(Vec::new())
            }
            tungstenite::Message::Close(frame) => {
                let reason = frame
                    .map(|frame| frame.reason.to_string())
                    .unwrap_or_default();
                Err(Close::disconnected(&format!("the daemon left: {reason}")))
            }
            // Only ever written.
            tungstenite::Message::Frame(_) => Ok(Vec::new()),
        }
    }

    /// Says that a frame of the open session is refused, whatever it holds.
    fn complain(&self, bytes: usize) {
        if let Some(left_out) = self.complaints.admit() {
            let (node, epoch) = (self.node, self.epoch);
            let limit = FRAME_BYTES_MAX;
            warn!(%node, epoch, bytes, limit, left_out, "a frame was refused: it is too large");
        }
    }

    fn work(&self) -> Work {
        Work {
            shared: self.shared.clone(),
            node: self.node,
            epoch: self.epoch,
            complaints: self.complaints.clone(),
        }
    }

    fn perform(&mut self, effect: Effect, handle: &Handle, works: &mut Works) -> Result<(), Close> {
        let work = self.work();
        match effect {
            Effect::Send(frame) => return handle.try_send(&frame),
            Effect::Close(close) => return Err(close),
            Effect::Report(updates) => works.push(Box::pin(work.report(updates))),
            Effect::ApplyGeneration(given) => works.push(Box::pin(work.apply_generation(given))),
            Effect::SendSpec => works.push(Box::pin(work.read_spec())),
            Effect::SendTrust { above } => works.push(Box::pin(work.read_trust(above, true))),
            Effect::RecordTrust(version) => self.shared.trust.told(self.node, version),
            Effect::Exchange(request) => {
                // The daemon asks again for what there is no room for.
                if let Ok(place) = self.exchanges.clone().try_acquire_owned() {
                    works.push(Box::pin(work.exchange(request, place)));
                }
            }
            // The machine opens a session once, in `greet`.
            Effect::Open { .. } => {}
        }
        Ok(())
    }

    fn finish(&mut self, done: Done, handle: &Handle) -> Result<Vec<Effect>, Close> {
        match done {
            Done::Nothing => {}
            Done::Frame(frame) => handle.try_send(&frame)?,
            Done::Generation(generation) => self.machine.generation_recorded(generation),
            Done::Trust(bundles) => return Ok(self.machine.trust(&bundles)),
            Done::Over(close) => return Err(close),
        }
        Ok(Vec::new())
    }

    async fn record_end(&self, close: &Close) {
        if self.epoch == 0 {
            return;
        }
        let (node, epoch) = (self.node, self.epoch);
        let ledger = &self.shared.ledger;
        let recorded = ledger.close_session(&self.shared.actor, node, epoch, &close.reason);
        match timeout(limits::RECORD_CLOSE_WITHIN, recorded).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                warn!(%node, epoch, error, "the end of a session could not be recorded");
            }
            Err(_) => warn!(%node, epoch, "the ledger does not answer to the end of a session"),
        }
    }
}

/// Writes what waits, as much as there is with one flush.
async fn write(
    sink: &mut SplitSink<Socket, tungstenite::Message>,
    first: Vec<Bytes>,
    frames: &mut mpsc::Receiver<Bytes>,
) -> Close {
    let mut batch = first;
    loop {
        let written = async {
            for bytes in batch.drain(..) {
                sink.feed(tungstenite::Message::Binary(bytes)).await?;
            }
            sink.flush().await
        };
        match timeout(limits::WRITE_WITHIN, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return ended(&error),
            Err(_) => return Close::slow(),
        }
        if frames
            .recv_many(&mut batch, limits::FRAMES_PER_WRITE_MAX)
            .await
            == 0
        {
            return Close::disconnected("nobody holds the session");
        }
    }
}

/// What a failure of the WebSocket means for the session.
fn ended(error: &tungstenite::Error) -> Close {
    debug!(%error, "a WebSocket failed");
    match error {
        tungstenite::Error::Capacity(_) => {
            let max = limits::MESSAGE_BYTES_MAX;
            Close::too_large(&format!("a message has more than {max} bytes"))
        }
        tungstenite::Error::Protocol(
            tungstenite::error::ProtocolError::ResetWithoutClosingHandshake,
        )
        | tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Io(_) => Close::disconnected("the connection broke"),
        tungstenite::Error::Protocol(error) => Close::protocol_error(&error.to_string()),
        tungstenite::Error::Utf8(_) => Close::text(),
        error => Close::protocol_error(&error.to_string()),
    }
}
