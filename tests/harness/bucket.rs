//! An S3-compatible server that nobody here wrote: it checks every signature, and keeps objects as files.

use std::path::{Path, PathBuf};

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

const KEY: &str = "tests";
const SECRET: &str = "a secret of the tests";
/// Name of its only bucket.
pub const NAME: &str = "ledger";

/// A running server with one bucket.
#[derive(Debug)]
pub struct Bucket {
    /// Where it is.
    pub endpoint: String,
    /// Where its objects are, by their keys.
    pub folder: PathBuf,
    _serving: JoinSet<()>,
}

impl Bucket {
    /// Serves a folder.
    pub async fn start(root: &Path) -> Self {
        let folder = root.join(NAME);
        std::fs::create_dir_all(&folder).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(root).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                connections.spawn(async move {
                    let http = Builder::new(TokioExecutor::new());
                    // A client that goes away is its own matter.
                    let _ = http.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Self {
            endpoint,
            folder,
            _serving: serving,
        }
    }

    /// The variables with which a program finds it.
    pub fn variables(&self) -> [(&str, &str); 4] {
        [
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_ENDPOINT_URL", &self.endpoint),
            ("AWS_REGION", "eu-central-1"),
        ]
    }
}
