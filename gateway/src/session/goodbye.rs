//! The end of a WebSocket: the close frame with its reason, and time for the other side to read it.

use futures_util::StreamExt;
use ledger_protocol::session::Close;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tracing::debug;

use crate::http::Socket;
use crate::limits;

/// Closes the socket. Whatever the other side does, this ends soon.
pub(super) async fn say_goodbye(mut socket: Socket, close: &Close) {
    let frame = CloseFrame {
        code: close.code.into(),
        reason: close.reason.as_str().into(),
    };
    let goodbye = async {
        if socket.close(Some(frame)).await.is_err() {
            return;
        }
        drain(&mut socket).await;
        let _ = socket.get_mut().shutdown().await;
    };
    if timeout(limits::CLOSE_WITHIN, goodbye).await.is_err() {
        debug!("a daemon did not answer the close frame");
    }
}

/// Reads on until the other side has closed too. A socket that is closed with bytes unread resets
/// the connection, and the other side would never see why.
async fn drain(socket: &mut Socket) {
    let mut left = limits::DRAIN_BYTES_MAX;
    loop {
        match socket.next().await {
            None => return,
            Some(Ok(message)) => match left.checked_sub(message.len().max(1)) {
                Some(rest) => left = rest,
                None => return,
            },
            // What follows a broken frame is no WebSocket any more.
            Some(Err(_)) => break,
        }
    }
    let mut buffer = vec![0; limits::READ_BUFFER_BYTES];
    while let Ok(read @ 1..) = socket.get_mut().read(&mut buffer).await {
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
