//! A link to Postgres that can be cut at the worst moment: before or after a COMMIT.
//!
//! It forwards bytes both ways and reads what the client says, message by message. A client that
//! was cut sees its connection end, as it does when a network dies or a failover happens.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use reqwest::Url;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Where the next COMMIT is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The server never hears of it.
    BeforeCommit,
    /// The server has committed, and the client never hears of it.
    AfterCommit,
}

/// The link. It ends, with all its connections, when this value goes.
#[derive(Debug)]
pub struct Proxy {
    /// The database's URL through the link.
    pub url: Url,
    armed: Arc<Mutex<Option<Cut>>>,
    _stop: DropGuard,
}

/// How the server is reached.
#[derive(Debug, Clone)]
enum Upstream {
    Unix(PathBuf),
    Tcp(String),
}

/// Code of a request for encryption, in place of the protocol's version.
const WANTS_TLS: u32 = 80_877_103;
const PORT: u16 = 5_432;

impl Proxy {
    /// A link to the server of this URL.
    #[expect(
        clippy::disallowed_methods,
        reason = "the guard in the value ends the task"
    )]
    pub async fn start(upstream: &Url) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut url = upstream.clone();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(address.port())).unwrap();
        // The link reads what goes over it.
        url.query_pairs_mut()
            .clear()
            .append_pair("sslmode", "disable");
        let armed = Arc::new(Mutex::new(None));
        let stop = CancellationToken::new();
        let accepting = accept(listener, reached(upstream), armed.clone());
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(accepting).await });
        Self {
            url,
            armed,
            _stop: stop.drop_guard(),
        }
    }

    /// Cuts the connection of whoever commits next.
    pub fn cut_next(&self, cut: Cut) {
        *self.armed.lock().unwrap() = Some(cut);
    }

    /// Whether a cut was asked for and has happened.
    pub fn has_cut(&self) -> bool {
        self.armed.lock().unwrap().is_none()
    }
}

fn reached(url: &Url) -> Upstream {
    let socket = url.query_pairs().find(|(name, _)| name == "host");
    let port = url.port().unwrap_or(PORT);
    match socket {
        Some((_, folder)) => {
            Upstream::Unix(PathBuf::from(folder.as_ref()).join(format!(".s.PGSQL.{port}")))
        }
        None => Upstream::Tcp(format!("{}:{port}", url.host_str().unwrap())),
    }
}

async fn accept(listener: TcpListener, upstream: Upstream, armed: Arc<Mutex<Option<Cut>>>) {
    let mut links = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        client.set_nodelay(true).unwrap();
        let (upstream, armed) = (upstream.clone(), armed.clone());
        links.spawn(async move {
            // However a link ends, both of its ends notice.
            let _ = match upstream {
                Upstream::Unix(path) => {
                    link(client, UnixStream::connect(path).await?, &armed).await
                }
                Upstream::Tcp(at) => link(client, TcpStream::connect(at).await?, &armed).await,
            };
            Ok::<_, io::Error>(())
        });
        while links.try_join_next().is_some() {}
    }
}

async fn link<S>(mut client: TcpStream, server: S, armed: &Mutex<Option<Cut>>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (mut said, mut answer) = (Vec::new(), vec![0; 64 * 1024]);
    let mut greeted = false;
    loop {
        tokio::select! {
            read = client.read_buf(&mut said) => if read? == 0 {
                return Ok(());
            },
            read = from_server.read(&mut answer) => match read? {
                0 => return Ok(()),
                read => client.write_all(&answer[..read]).await?,
            },
        }
        while let Some(message) = take(&mut said, &mut greeted) {
            let cut = commits(&message)
                .then(|| armed.lock().unwrap().take())
                .flatten();
            match cut {
                Some(Cut::BeforeCommit) => return Ok(()),
                Some(Cut::AfterCommit) => {
                    to_server.write_all(&message).await?;
                    return committed(&mut from_server).await;
                }
                None => to_server.write_all(&message).await?,
            }
        }
    }
}

/// The next whole message of the client. Until it has told whom it wants, messages have no type.
fn take(said: &mut Vec<u8>, greeted: &mut bool) -> Option<Vec<u8>> {
    let typed = usize::from(*greeted);
    let length = said.get(typed..typed + 4)?;
    let length = u32::from_be_bytes(length.try_into().unwrap());
    let whole = typed + usize::try_from(length).unwrap();
    if said.len() < whole {
        return None;
    }
    let message: Vec<u8> = said.drain(..whole).collect();
    if !*greeted {
        let code = u32::from_be_bytes(message[4..8].try_into().unwrap());
        *greeted = code != WANTS_TLS;
    }
    Some(message)
}

/// Whether a message is `COMMIT`, as a simple query or as a statement to be prepared.
fn commits(message: &[u8]) -> bool {
    let text = match message {
        [b'Q', _, _, _, _, text @ ..] => text,
        [b'P', _, _, _, _, rest @ ..] => {
            let name = rest.iter().position(|byte| *byte == 0).unwrap_or(0);
            rest.get(name + 1..).unwrap_or_default()
        }
        _ => return false,
    };
    text.get(..6)
        .is_some_and(|word| word.eq_ignore_ascii_case(b"commit"))
}

/// Waits until the server says that it has committed.
async fn committed(from_server: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    loop {
        let kind = from_server.read_u8().await?;
        let length = from_server.read_u32().await?;
        let mut body = vec![0; usize::try_from(length).unwrap() - 4];
        from_server.read_exact(&mut body).await?;
        match kind {
            b'C' if body.starts_with(b"COMMIT") => return Ok(()),
            b'E' => panic!("the commit was refused: {}", String::from_utf8_lossy(&body)),
            _ => {}
        }
    }
}
