//! What lies between two managers: passes bytes on, until it is told to hold them, or to cut the connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Dropping it cuts everything.
pub struct Gate {
    pub address: SocketAddr,
    /// Nothing passes, and nobody is told.
    frozen: watch::Sender<bool>,
    /// Bytes that passed towards the one behind the gate.
    passed: Arc<AtomicU64>,
    /// Where the connection that brings `passed` there is cut, once.
    cut_at: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl Gate {
    /// A gate in front of `behind`.
    pub async fn before(behind: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let frozen = watch::Sender::new(false);
        let (passed, cut_at) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
        let mut tasks = JoinSet::new();
        let (freezing, counted, cut) = (frozen.subscribe(), passed.clone(), cut_at.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                // The one behind may be away.
                let Ok(far) = TcpStream::connect(behind).await else { continue };
                far.set_nodelay(true).unwrap();
                near.set_nodelay(true).unwrap();
                let (near, far) = (near.into_split(), far.into_split());
                let (there, back) = (freezing.clone(), freezing.clone());
                let (counted, cut) = (counted.clone(), cut.clone());
                connections.spawn(async move {
                    tokio::select! {
                        () = pass(near.0, far.1, there, Some((counted, cut))) => {}
                        () = pass(far.0, near.1, back, None) => {}
                    }
                });
            }
        });
        Self { address, frozen, passed, cut_at, _tasks: tasks }
    }

    pub fn freeze(&self, frozen: bool) {
        self.frozen.send_replace(frozen);
    }

    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }

    pub fn cut_after(&self, more: u64) {
        self.cut_at.store(self.passed() + more, Ordering::Relaxed);
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut frozen: watch::Receiver<bool>,
    counted: Option<(Arc<AtomicU64>, Arc<AtomicU64>)>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        frozen.wait_for(|frozen| !frozen).await.unwrap();
        let Ok(bytes @ 1..) = from.read(&mut buffer).await else { return };
        frozen.wait_for(|frozen| !frozen).await.unwrap();
        if let Some((passed, cut_at)) = &counted {
            let passed = passed.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
            if passed >= cut_at.load(Ordering::Relaxed) {
                cut_at.store(u64::MAX, Ordering::Relaxed);
                return;
            }
        }
        if to.write_all(&buffer[..bytes]).await.is_err() {
            return;
        }
    }
}
