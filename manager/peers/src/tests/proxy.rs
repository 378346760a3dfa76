//! A TCP proxy between two managers: forwards bytes until it is told to pause or to cut the connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Dropping it cuts all connections.
pub struct TestProxy {
    pub address: SocketAddr,
    /// Bytes are silently dropped.
    frozen: watch::Sender<bool>,
    /// Bytes forwarded to the target.
    passed: Arc<AtomicU64>,
    /// The number of bytes after which the connection is cut once, or forwarding stops.
    cut_at: Arc<AtomicU64>,
    freeze_at: Arc<AtomicU64>,
    _tasks: JoinSet<()>,
}

impl TestProxy {
    /// A proxy in front of `behind`.
    pub async fn in_front_of(behind: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let frozen = watch::Sender::new(false);
        let never = || Arc::new(AtomicU64::new(u64::MAX));
        let (passed, cut_at, freeze_at) = (Arc::new(AtomicU64::new(0)), never(), never());
        let mut tasks = JoinSet::new();
        let freezing = frozen.subscribe();
        let counted = ByteLimits {
            passed: passed.clone(),
            cut_at: cut_at.clone(),
            freeze_at: freeze_at.clone(),
            freeze: frozen.clone(),
        };
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                // The target may be down.
                let Ok(far) = TcpStream::connect(behind).await else { continue };
                far.set_nodelay(true).unwrap();
                near.set_nodelay(true).unwrap();
                let (near, far) = (near.into_split(), far.into_split());
                let (there, back) = (freezing.clone(), freezing.clone());
                let counted = counted.clone();
                connections.spawn(async move {
                    tokio::select! {
                        () = pass(near.0, far.1, there, Some(counted)) => {}
                        () = pass(far.0, near.1, back, None) => {}
                    }
                });
            }
        });
        Self { address, frozen, passed, cut_at, freeze_at, _tasks: tasks }
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

    pub fn freeze_after(&self, more: u64) {
        self.freeze_at.store(self.passed() + more, Ordering::Relaxed);
    }
}

/// What is done about how much passed.
#[derive(Clone)]
struct ByteLimits {
    passed: Arc<AtomicU64>,
    cut_at: Arc<AtomicU64>,
    freeze_at: Arc<AtomicU64>,
    freeze: watch::Sender<bool>,
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut frozen: watch::Receiver<bool>,
    counted: Option<ByteLimits>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        frozen.wait_for(|frozen| !frozen).await.unwrap();
        let Ok(bytes @ 1..) = from.read(&mut buffer).await else { return };
        if let Some(ByteLimits { passed, cut_at, freeze_at, freeze }) = &counted {
            let passed = passed.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
            if passed >= cut_at.load(Ordering::Relaxed) {
                cut_at.store(u64::MAX, Ordering::Relaxed);
                return;
            }
            if passed >= freeze_at.load(Ordering::Relaxed) {
                freeze_at.store(u64::MAX, Ordering::Relaxed);
                freeze.send_replace(true);
            }
        }
        frozen.wait_for(|frozen| !frozen).await.unwrap();
        if to.write_all(&buffer[..bytes]).await.is_err() {
            return;
        }
    }
}
