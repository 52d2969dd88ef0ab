//! How others reach a session. Nobody waits for one: what does not fit its queue ends it.

use std::sync::Arc;

use bytes::Bytes;
use ledger_protocol::frame::Frame;
use ledger_protocol::session::Close;
use tokio::sync::{Notify, mpsc};
use tracing::error;

use crate::limits;

/// The outside of a session. Cloning is cheap.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    frames: mpsc::Sender<Bytes>,
    closes: mpsc::Sender<Close>,
    spec: Arc<Notify>,
}

/// The inside of a session.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) frames: mpsc::Receiver<Bytes>,
    pub(super) closes: mpsc::Receiver<Close>,
}

impl Handle {
    pub(super) fn new() -> (Self, Inbox) {
        let (frames, waiting) = mpsc::channel(limits::OUTBOUND_FRAMES_MAX);
        // The first reason to end counts, so that one place is enough.
        let (closes, reasons) = mpsc::channel(1);
        let handle = Self {
            frames,
            closes,
            spec: Arc::new(Notify::new()),
        };
        (
            handle,
            Inbox {
                frames: waiting,
                closes: reasons,
            },
        )
    }

    /// Puts a frame into the queue, or tells why the session is to end.
    pub(super) fn try_send(&self, frame: &Frame) -> Result<(), Close> {
        match self.frames.try_send(encode(frame)?) {
            // A session that is over needs no frames.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Close::slow()),
        }
    }

    /// Puts a frame into the queue; a full queue ends the session.
    pub(crate) fn send(&self, frame: &Frame) {
        if let Err(close) = self.try_send(frame) {
            self.close(close);
        }
    }

    /// Asks the session to end. The first reason counts.
    pub(crate) fn close(&self, close: Close) {
        let _ = self.closes.try_send(close);
    }

    /// The node has a new desired state to be sent.
    pub(crate) fn spec_changed(&self) {
        self.spec.notify_one();
    }

    /// Waits for a new desired state.
    pub(super) async fn spec_change(&self) {
        self.spec.notified().await;
    }
}

/// The bytes of a frame.
pub(super) fn encode(frame: &Frame) -> Result<Bytes, Close> {
    frame.encode().map(Bytes::from).map_err(|error| {
        error!(
            error = &error as &dyn std::error::Error,
            frame = frame.name(),
            "cannot be encoded"
        );
        Close::try_again("the gateway could not write a frame")
    })
}
