//! Requests to the demo's web server, one after the other, by several clients at the same time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

/// Longer than the drain delay and the time that a busy machine needs for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A client in a network namespace.
#[derive(Debug, Clone)]
pub struct HttpClient {
    /// The file of the namespace.
    pub namespace: PathBuf,
    /// The server.
    pub target: SocketAddr,
    /// All requests use one connection until the server closes it; otherwise each has its own.
    pub keeps_connection: bool,
    /// Between two requests.
    pub pause: Duration,
}

/// Clients that send requests until [`HttpLoad::end`].
pub struct HttpLoad {
    ended: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<ClientReport>>,
}

/// What clients saw.
#[derive(Debug, Default)]
pub struct ClientReport {
    /// How long each answered request took, with its connection.
    pub latencies: Vec<Duration>,
    /// Each failed request.
    pub failures: Vec<String>,
}

impl HttpLoad {
    /// Starts a thread per client.
    #[track_caller]
    pub fn start(clients: impl IntoIterator<Item = HttpClient>) -> HttpLoad {
        let (ended, answered): (Arc<AtomicBool>, Arc<AtomicUsize>) = Default::default();
        let start = Instant::now();
        let threads = clients.into_iter().map(|client| {
            let (ended, answered) = (Arc::clone(&ended), Arc::clone(&answered));
            let namespace = File::open(&client.namespace)
                .unwrap_or_else(|error| panic!("{}: {error}", client.namespace.display()));
            std::thread::spawn(move || {
                setns(namespace, CloneFlags::CLONE_NEWNET).expect("tests run as root");
                client.run(&ended, &answered, start)
            })
        });
        HttpLoad { threads: threads.collect(), ended, answered }
    }

    /// Requests that were answered until now.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends the clients.
    #[track_caller]
    pub fn end(self) -> ClientReport {
        self.ended.store(true, Ordering::Relaxed);
        let mut all = ClientReport::default();
        for thread in self.threads {
            let ClientReport { latencies, failures } = thread.join().expect("a client does not panic");
            all.latencies.extend(latencies);
            all.failures.extend(failures);
        }
        all
    }
}

impl HttpClient {
    fn run(&self, ended: &AtomicBool, answered: &AtomicUsize, start: Instant) -> ClientReport {
        let (mut report, mut kept) = (ClientReport::default(), None);
        while !ended.load(Ordering::Relaxed) {
            let sent = Instant::now();
            match self.request(&mut kept) {
                Ok(()) => {
                    answered.fetch_add(1, Ordering::Relaxed);
                    report.latencies.push(sent.elapsed());
                }
                Err(error) => {
                    report.failures.push(format!("{self:?} after {:?}: {error}", start.elapsed()));
                }
            }
            // Not a wait: the load leaves the machine to others.
            std::thread::sleep(self.pause);
        }
        report
    }

    /// One request, over the kept connection if there is one. A connection that the server does not close is kept for
    /// the next request.
    fn request(&self, kept: &mut Option<BufReader<TcpStream>>) -> Result<(), String> {
        let mut answer = String::new();
        let connection = self.exchange(kept.take(), &mut answer);
        let connection = connection.map_err(|error| format!("{error} after {answer:?}"))?;
        if !answer.starts_with("HTTP/1.1 200 ") || !answer.ends_with("\nok\n") {
            return Err(format!("answer {answer:?}"));
        }
        *kept = answer.contains("\r\nConnection: keep-alive\r\n").then_some(connection);
        Ok(())
    }

    /// Sends a request and reads the answer.
    fn exchange(
        &self,
        kept: Option<BufReader<TcpStream>>,
        answer: &mut String,
    ) -> io::Result<BufReader<TcpStream>> {
        let mut connection = match kept {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect_timeout(&self.target, TIMEOUT)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_nodelay(true)?;
                BufReader::new(stream)
            }
        };
        let kind = if self.keeps_connection { "keep-alive" } else { "close" };
        let request = format!("GET /healthz HTTP/1.1\r\nHost: web\r\nConnection: {kind}\r\n\r\n");
        connection.get_mut().write_all(request.as_bytes())?;
        while !answer.ends_with("\nok\n") && connection.read_line(answer)? > 0 {}
        Ok(connection)
    }
}
