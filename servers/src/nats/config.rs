//! The server's configuration file, and the port and token that outlive a run.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
};

use rand::{TryRng as _, rngs::SysRng};

use super::NatsOptions;
use crate::{Durability, Error, files};

/// Random bytes in a token, and in a name of the server.
const TOKEN_BYTES: usize = 16;
const NAME_BYTES: usize = 6;

#[derive(Debug)]
pub(super) struct Config {
    pub(super) folder: PathBuf,
    pub(super) port: u16,
    pub(super) token: String,
    /// Tells this server from another one that got its port.
    pub(super) name: String,
}

impl Config {
    /// Takes port and token from the last run in the folder; a new folder gets a new token.
    pub(super) fn load_or_make(folder: &Path) -> Result<Config, Error> {
        let token_file = folder.join("token");
        let kept = files::read_if_there(&token_file)?.map(|text| text.trim().to_owned());
        let token = if let Some(kept) = kept.filter(|kept| is_token(kept)) {
            kept
        } else {
            let token = random_hex(TOKEN_BYTES)?;
            files::write_private(&token_file, &format!("{token}\n"))?;
            token
        };
        let port = files::read_if_there(&port_file(folder))?;
        Ok(Config {
            folder: folder.into(),
            port: port.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
            token,
            name: format!("ledger-{}", random_hex(NAME_BYTES)?),
        })
    }

    pub(super) fn file(folder: &Path) -> PathBuf {
        folder.join("nats.conf")
    }

    pub(super) fn store_folder(&self) -> PathBuf {
        self.folder.join("jetstream")
    }

    /// Keeps the port if it is free, else takes one that is.
    pub(super) fn choose_port(&mut self) -> Result<(), Error> {
        let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = match self.port {
            0 => bind(0),
            port => bind(port).or_else(|_| bind(0)),
        };
        let port = listener
            .and_then(|listener| listener.local_addr())
            .map(|found| found.port());
        self.port = port.map_err(Error::io("find a free port on", "127.0.0.1"))?;
        files::write_private(&port_file(&self.folder), &format!("{}\n", self.port))
    }

    pub(super) fn write(&self, options: &NatsOptions) -> Result<(), Error> {
        files::write_private(&Config::file(&self.folder), &self.text(options))
    }

    fn text(&self, options: &NatsOptions) -> String {
        let sync = match options.durability {
            Durability::Durable => "sync_interval: always",
            Durability::Throwaway => "",
        };
        format!(
            "listen: \"127.0.0.1:{port}\"\n\
             server_name: {name}\n\
             authorization {{ token: \"{token}\" }}\n\
             max_payload: {payload}\n\
             jetstream {{\n  store_dir: {store}\n  max_mem: 64MB\n  max_file: {file}\n  {sync}\n}}\n",
            port = self.port,
            name = self.name,
            token = self.token,
            payload = options.payload_bytes_max,
            store = quote(&self.store_folder().to_string_lossy()),
            file = options.store_bytes_max,
        )
    }
}

fn port_file(folder: &Path) -> PathBuf {
    folder.join("port")
}

/// A token goes into a URL and a configuration file as it is.
fn is_token(text: &str) -> bool {
    text.len() == TOKEN_BYTES * 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn random_hex(bytes: usize) -> Result<String, Error> {
    let mut random = vec![0; bytes];
    SysRng.try_fill_bytes(&mut random).map_err(Error::Random)?;
    Ok(random.iter().fold(String::new(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

/// A string of NATS' configuration language.
fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_and_free_port_are_kept_and_a_taken_port_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = Config::load_or_make(folder.path()).unwrap();
        first.choose_port().unwrap();
        assert!(is_token(&first.token));
        let mut second = Config::load_or_make(folder.path()).unwrap();
        second.choose_port().unwrap();
        assert_eq!((second.port, &second.token), (first.port, &first.token));
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first.port)).unwrap();
        second.choose_port().unwrap();
        assert_ne!(second.port, first.port);
    }

    #[test]
    fn durable_means_every_message_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::load_or_make(folder.path()).unwrap();
        let options = NatsOptions::new(folder.path());
        assert!(config.text(&options).contains("sync_interval: always"));
        assert!(!config.text(&options.throwaway()).contains("sync_interval"));
        assert_eq!(quote(r#"/a "b" \c"#), r#""/a \"b\" \\c""#);
    }
}
