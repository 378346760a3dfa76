//! A network namespace with servers, and a prober outside of it.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warren_health::{Exec, ExecResult, ExecStatus, ProbeLimits, ProbeOutcome, ProbeTarget, Prober};
use warren_types::spec::{HealthCheck, HttpHeader, Probe};

/// Address of the task in the namespace.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 9, 8, 7);

/// A namespace that exists as long as this value.
pub struct ProbeFixture {
    namespace: File,
    pub prober: Prober,
    /// Requested programs, and their results.
    pub exec: Arc<ScriptedExec>,
}

#[derive(Default)]
pub struct ScriptedExec {
    pub commands: Mutex<Vec<Vec<String>>>,
    pub result: Mutex<Option<ExecResult>>,
}

#[async_trait::async_trait]
impl Exec for ScriptedExec {
    async fn run(&self, _target: &ProbeTarget, command: &[String], _timeout: Duration) -> ExecResult {
        self.commands.lock().unwrap().push(command.to_vec());
        let answer = self.result.lock().unwrap().clone();
        match answer {
            Some(ran) => ran,
            None => std::future::pending().await,
        }
    }
}

/// Output and exit status of a program.
pub fn ran(ending: ExecStatus, output: &str) -> Option<ExecResult> {
    Some(ExecResult { status: ending, output: output.into() })
}

/// Runs `work` on a thread in the namespace of the file, or in a new one.
fn inside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static, namespace: Option<&File>) -> T {
    let namespace = namespace.map(|file| file.try_clone().unwrap());
    let thread = std::thread::spawn(move || {
        match namespace {
            Some(file) => nix::sched::setns(file, CloneFlags::CLONE_NEWNET).unwrap(),
            None => unshare(CloneFlags::CLONE_NEWNET).unwrap(),
        }
        work()
    });
    thread.join().unwrap()
}

impl ProbeFixture {
    pub fn new() -> Self {
        Self::with_permits(64)
    }

    pub fn with_permits(permits: usize) -> Self {
        let make = || {
            for args in ["link set lo up", &format!("addr add {ADDRESS}/32 dev lo")] {
                assert!(Command::new("ip").args(args.split(' ')).status().unwrap().success());
            }
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        let (namespace, exec) = (inside(make, None), Arc::<ScriptedExec>::default());
        let limits = ProbeLimits { programs: permits, connections: permits };
        Self { namespace, prober: Prober::new(exec.clone(), limits), exec }
    }

    pub fn target(&self) -> ProbeTarget {
        let netns = format!("/proc/self/fd/{}", self.namespace.as_raw_fd()).into();
        ProbeTarget { container: "web-1".into(), netns, address: ADDRESS }
    }

    /// A listener in the namespace, and its port.
    pub fn listen(&self, address: Ipv4Addr) -> (tokio::net::TcpListener, u16) {
        self.listen_on(address, 0)
    }

    /// The same on this port, or on a free one if it is 0.
    pub fn listen_on(&self, address: Ipv4Addr, port: u16) -> (tokio::net::TcpListener, u16) {
        let bind = move || std::net::TcpListener::bind((address, port)).unwrap();
        let listener = inside(bind, Some(&self.namespace));
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        (tokio::net::TcpListener::from_std(listener).unwrap(), port)
    }

    /// Serves each connection with `answer`, which receives the request head.
    pub fn serve<F>(&self, answer: impl Fn(String, TcpStream) -> F + Send + Sync + 'static) -> u16
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (listener, port) = self.listen(Ipv4Addr::UNSPECIFIED);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                tokio::spawn(answer(String::from_utf8(head).unwrap(), stream));
            }
        });
        port
    }

    /// Serves the same bytes to every client and then closes.
    pub fn serve_bytes(&self, answer: impl Into<Vec<u8>>) -> u16 {
        let answer: Arc<[u8]> = answer.into().into();
        self.serve(move |_, mut stream| {
            let answer = Arc::clone(&answer);
            async move {
                stream.write_all(&answer).await.ok();
                stream.shutdown().await.ok();
            }
        })
    }

    pub async fn probe(&self, probe: Probe) -> ProbeOutcome {
        self.probe_with_timeout(probe, Duration::from_secs(30)).await
    }

    pub async fn probe_with_timeout(&self, probe: Probe, timeout: Duration) -> ProbeOutcome {
        let check = HealthCheck { timeout, ..HealthCheck::new(probe) };
        self.prober.check(&check, &self.target()).await
    }
}

pub fn get(port: u16, path: &str) -> Probe {
    Probe::Http { port, path: path.into(), headers: Vec::new() }
}

pub fn get_with(port: u16, path: &str, headers: &[(&str, &str)]) -> Probe {
    let header = |(name, value): &(&str, &str)| HttpHeader { name: (*name).into(), value: (*value).into() };
    Probe::Http { port, path: path.into(), headers: headers.iter().map(header).collect() }
}
