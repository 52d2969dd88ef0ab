//! One address in front of several services, as a load balancer is: who finds one dead is sent to
//! the next.

use std::net::SocketAddr;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Who is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each in turn.
    Turns,
    /// The first of the list; the others are there for when it is dead.
    Listed,
}

/// The address. It ends, with all its connections, when this value goes.
#[derive(Debug)]
pub struct Front {
    /// Where it listens.
    pub address: SocketAddr,
    _stop: DropGuard,
}

impl Front {
    /// Listens on any port for these services.
    #[expect(
        clippy::disallowed_methods,
        reason = "the guard in the value ends the task"
    )]
    pub async fn start(services: Vec<SocketAddr>, order: Order) -> Self {
        // Each link has two, and the usual limit is 1,024; every process may raise its own.
        let mut files = getrlimit(Resource::Nofile);
        files.current = files.maximum;
        setrlimit(Resource::Nofile, files).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (accepting, stopped) = (accept(listener, services.into(), order), stop.clone());
        tokio::spawn(async move { stopped.run_until_cancelled(accepting).await });
        Self {
            address,
            _stop: stop.drop_guard(),
        }
    }
}

async fn accept(listener: TcpListener, services: Arc<[SocketAddr]>, order: Order) {
    let (mut links, mut turn) = (JoinSet::new(), 0);
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (services, first) = (services.clone(), turn);
        if order == Order::Turns {
            turn = (turn + 1) % services.len();
        }
        links.spawn(async move {
            for place in 0..services.len() {
                let service = services[(first + place) % services.len()];
                if let Ok(service) = TcpStream::connect(service).await {
                    return link(client, service).await;
                }
            }
        });
        while links.try_join_next().is_some() {}
    }
}

/// However the link ends, both of its ends notice.
async fn link(mut client: TcpStream, mut service: TcpStream) {
    for stream in [&client, &service] {
        // Frames wait for nothing, here as little as without a front.
        let _ = stream.set_nodelay(true);
    }
    let _ = copy_bidirectional(&mut client, &mut service).await;
}
