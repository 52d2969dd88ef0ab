//! The little of NATS' protocol that starting a server needs: its first line, and a ping with the token.

use std::{io, net::Ipv4Addr};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::timeout,
};

use super::config::Config;
use crate::limits::{ANSWER_WITHIN, NATS_LINE_BYTES_MAX};

/// Whether our server answers a client that has the token.
pub(super) async fn ask(config: &Config) -> io::Result<()> {
    let talk = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, config.port)).await?;
        let (reader, mut writer) = stream.split();
        // An endless line would fill the memory.
        let mut reader = BufReader::new(reader).take(NATS_LINE_BYTES_MAX as u64);
        let mut line = String::new();
        reader.read_line(&mut line).await?;
        if !line.starts_with("INFO ") || !line.contains(&format!("\"{}\"", config.name)) {
            return Err(io::Error::other("another server has the port"));
        }
        let connect = format!(
            "CONNECT {{\"verbose\":false,\"auth_token\":\"{}\"}}\r\nPING\r\n",
            config.token
        );
        writer.write_all(connect.as_bytes()).await?;
        loop {
            line.clear();
            reader.read_line(&mut line).await?;
            match line.trim_end() {
                "PONG" => return Ok(()),
                // It may tell its INFO again after a CONNECT.
                info if info.starts_with("INFO ") => {}
                other => return Err(io::Error::other(format!("it answered {other:?}"))),
            }
        }
    };
    timeout(ANSWER_WITHIN, talk)
        .await
        .unwrap_or_else(|late| Err(late.into()))
}
