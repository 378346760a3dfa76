//! The DNS server of a node with 5,000 services, beside dnsmasq with the same names if it is installed.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::socket::{setsockopt, sockopt};
use warren_dns::{DnsClient, DnsServer, DnsSockets, NameTable, NetworkNames, NodeAddresses};
use warren_types::{Catalogue, CatalogueService, Endpoint, Id, NetworkId};

use crate::figures::BenchFigures;
use crate::node::cpu_seconds;

/// The argument of the process that serves.
pub const SERVER: &str = "dns-server";
const SERVICES: u32 = 5_000;
/// The address of the client, whose queries are answered from the table.
const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Pairs of measurements.
const ROUNDS: usize = 5;
/// Queries of one measurement of the CPU.
const QUERIES: u32 = 200_000;
/// Queries that wait for their answers at a time.
const WINDOW: u32 = 50;
/// The load under which latencies are measured, in queries per second.
const RATE: u32 = 20_000;
const LOAD_TIME: Duration = Duration::from_secs(5);

fn name(number: u32) -> String {
    format!("service-{number}")
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 210, 0, 1)) + number)
}

fn catalogue() -> Catalogue {
    let service = |number: u32| {
        let endpoint = |slot| Endpoint { slot, address: address(number * 4 + slot), ready: true };
        let service = CatalogueService {
            virtual_address: Some(address(number * 4)),
            endpoints: (1..=3).map(endpoint).collect(),
            ..CatalogueService::default()
        };
        (name(number).parse().expect("a valid name"), service)
    };
    Catalogue {
        network: NetworkId(Id(1)),
        name: "default".parse().expect("a valid name"),
        number: 1,
        internal: false,
        services: (0..SERVICES).map(service).collect(),
    }
}

/// Serves until the standard input ends, at an address that it prints.
pub fn serve() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _guard = runtime.enter();
    let server = DnsServer::start(vec![DnsSockets::bind((Ipv4Addr::LOCALHOST, 0).into())?])?;
    let catalogue = catalogue();
    let client = DnsClient { networks: vec![catalogue.network], ..DnsClient::default() };
    let names = Arc::new(NetworkNames::new(&catalogue));
    server.set_table(NameTable::new([names], &[(CLIENT, client)].into(), NodeAddresses::default()));
    println!("{}", server.addresses()[0]);
    std::io::stdin().read_to_end(&mut Vec::new())?;
    runtime.block_on(server.stop());
    Ok(())
}

/// A server in a process of its own.
struct ServerProcess {
    child: Child,
    address: SocketAddr,
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ServerProcess {
    fn start_own() -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg(SERVER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        let address = line.trim().parse().context("the address of the server")?;
        Ok(Self { child, address })
    }

    /// `None` if it is not installed.
    fn start_dnsmasq(hosts: &std::path::Path) -> anyhow::Result<Option<Self>> {
        let mut text = String::new();
        for number in 0..SERVICES {
            writeln!(text, "{} {}", address(number * 4), name(number))?;
        }
        std::fs::write(hosts, text)?;
        let address = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new("dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts"]);
        command.args(["--user=root", "--pid-file=", "--bind-interfaces", "--listen-address=127.0.0.1"]);
        command.args(["--cache-size=10000", "--local-ttl=5"]).arg(format!("--port={}", address.port()));
        command.arg(format!("--addn-hosts={}", hosts.display())).stderr(Stdio::null());
        let child = match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            child => child?,
        };
        let server = Self { child, address };
        let deadline = Instant::now() + Duration::from_secs(10);
        while LoadGenerator::new(address)?.answers(1).is_err() {
            ensure!(Instant::now() < deadline, "dnsmasq does not answer");
        }
        Ok(Some(server))
    }

    /// Queries per second of CPU time of the server, with a constant number of waiting queries.
    fn queries_per_cpu_second(&self) -> anyhow::Result<f64> {
        let pid = i32::try_from(self.child.id())?;
        let mut load = LoadGenerator::new(self.address)?;
        load.answers(WINDOW)?;
        let before = cpu_seconds(pid)?;
        for _ in 0..QUERIES / WINDOW {
            load.answers(WINDOW)?;
        }
        Ok(f64::from(QUERIES) / (cpu_seconds(pid)? - before))
    }
}

/// Asks for one service after the other, in a fixed order that is not that of their names.
struct LoadGenerator {
    socket: UdpSocket,
    queries: Vec<Vec<u8>>,
    next: usize,
}

impl LoadGenerator {
    fn new(server: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind((CLIENT, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        // The answers of a moment in which the receiver does not run are not lost.
        setsockopt(&socket, sockopt::RcvBufForce, &(4 << 20))?;
        // 1,237 is prime and no divisor of the number of services.
        let queries = (0..SERVICES).map(|number| query(&name(number * 1_237 % SERVICES))).collect();
        Ok(Self { socket, queries, next: 0 })
    }

    fn send(&mut self, id: u16) -> anyhow::Result<()> {
        let query = &mut self.queries[self.next];
        query[..2].copy_from_slice(&id.to_be_bytes());
        self.socket.send(query)?;
        self.next = (self.next + 1) % self.queries.len();
        Ok(())
    }

    /// Sends so many queries and waits for all answers.
    fn answers(&mut self, count: u32) -> anyhow::Result<()> {
        for id in 0..count {
            self.send(id as u16)?;
        }
        let mut buffer = [0; 512];
        for _ in 0..count {
            let size = self.socket.recv(&mut buffer).context("an answer")?;
            let has_answer = size > 12 && buffer[3] & 15 == 0 && buffer[6..8] == [0, 1];
            ensure!(has_answer, "{:02x?} is no answer", &buffer[..size]);
        }
        Ok(())
    }
}

/// A query for the address of a name of one label.
fn query(name: &str) -> Vec<u8> {
    let header = [0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    [&header[..], &[name.len() as u8], name.as_bytes(), &[0, 0, 1, 0, 1]].concat()
}

/// Latencies at a constant rate, whether answers arrive or not, sorted; and the number of queries without an answer.
fn latencies(server: SocketAddr) -> anyhow::Result<(Vec<f64>, usize)> {
    let mut load = LoadGenerator::new(server)?;
    let sent: Arc<Vec<AtomicU64>> = Arc::new((0..=u16::MAX).map(|_| AtomicU64::new(0)).collect());
    let start = Instant::now();
    let receiver = {
        let (socket, sent) = (load.socket.try_clone()?, Arc::clone(&sent));
        std::thread::spawn(move || {
            let (mut buffer, mut latencies) = ([0; 512], Vec::new());
            while socket.recv(&mut buffer).is_ok() {
                let id = u16::from_be_bytes([buffer[0], buffer[1]]);
                let micros =
                    start.elapsed().as_micros() as u64 - sent[usize::from(id)].load(Ordering::Acquire);
                latencies.push(micros as f64 / 1000.0);
            }
            latencies
        })
    };
    let total = RATE * LOAD_TIME.as_secs() as u32;
    for number in 0..total {
        let due = Duration::from_secs_f64(f64::from(number) / f64::from(RATE));
        // Several at once, because timers are too coarse for 50 microseconds.
        while start.elapsed() < due {
            std::thread::sleep(Duration::from_micros(100));
        }
        let id = number as u16;
        sent[usize::from(id)].store(start.elapsed().as_micros() as u64, Ordering::Release);
        load.send(id)?;
    }
    let mut latencies: Vec<f64> = receiver.join().map_err(|_| anyhow::anyhow!("the receiver failed"))?;
    latencies.sort_by(f64::total_cmp);
    ensure!(!latencies.is_empty(), "no answer");
    let lost = total as usize - latencies.len();
    Ok((latencies, lost))
}

pub fn measure(figures: &mut BenchFigures) -> anyhow::Result<()> {
    println!("\nDNS, 5,000 services");
    let catalogue = catalogue();
    let index = |_| {
        let start = Instant::now();
        std::hint::black_box(NetworkNames::new(&catalogue));
        start.elapsed().as_secs_f64() * 1000.0
    };
    let indexed: Vec<f64> = (0..20).map(index).collect();
    figures.add_samples("names of a changed network indexed", &indexed, "ms", "");
    let directory = tempfile::tempdir()?;
    let own = ServerProcess::start_own()?;
    let dnsmasq = ServerProcess::start_dnsmasq(&directory.path().join("hosts"))?;
    let (mut ours, mut theirs, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let queries = own.queries_per_cpu_second()?;
        ours.push(queries);
        if let Some(dnsmasq) = &dnsmasq {
            let other = dnsmasq.queries_per_cpu_second()?;
            theirs.push(other);
            ratio.push(queries / other);
        }
    }
    figures.add_samples("queries per second of CPU", &ours, "1/s", "");
    match &dnsmasq {
        Some(_) => {
            figures.add_samples("dnsmasq, queries per second of CPU", &theirs, "1/s", "");
            figures.add_samples("ratio, pair by pair", &ratio, "x", ">= 0.9");
        }
        None => println!("dnsmasq is not installed: not compared"),
    }
    measure_latencies(figures, "20,000 queries per second", &own)?;
    if let Some(dnsmasq) = &dnsmasq {
        measure_latencies(figures, "dnsmasq, 20,000 queries per second", dnsmasq)?;
    }
    Ok(())
}

fn measure_latencies(figures: &mut BenchFigures, what: &str, server: &ServerProcess) -> anyhow::Result<()> {
    let (latencies, lost) = latencies(server.address)?;
    let share = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    figures.add(&format!("{what}, median latency"), share(0.5), "ms", "");
    figures.add(&format!("{what}, 99th percentile"), share(0.99), "ms", "< 1");
    figures.add(&format!("{what}, without an answer"), lost as f64, "queries", "0");
    Ok(())
}
