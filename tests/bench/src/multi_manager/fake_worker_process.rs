//! The process of simulated workers: each has its own key, certificate and session, and reports every
//! assigned task as running. Started by `fake_workers`; commands come on the standard input, results go to
//! the standard output.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use prost::Message;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use warren_daemon::join::channel_over;
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame as FromManager;
use warren_proto::v1::membership_client::MembershipClient;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::worker_frame::Frame as ToManager;
use warren_security::{
    CertificateRequest, Credentials, JoinToken, PrivateKey, ReloadableCertificate, client_config, connect,
    connect_to_join,
};
use warren_types::spec::WITHDRAWAL_TIMEOUT;

/// For TCP and TLS each, as long as a worker's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// From the call to the welcome message, as long as a worker's.
const WELCOME: Duration = Duration::from_secs(5);
/// Machines that join concurrently.
const JOINING: usize = 24;
/// How often a machine tries to join.
const TRIES: usize = 20;
/// The digest of every image.
const DIGEST: &str = "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
/// Frames that wait to be sent.
const QUEUE: usize = 64;
/// Between two checks whether all workers were told something.
const LOOK: Duration = Duration::from_millis(1);
/// Without an update for this long, the workers have all of them; managers wait 50 ms for more changes.
const QUIET: Duration = Duration::from_millis(300);
/// Between two attempts to open a session.
const AGAIN: Duration = Duration::from_millis(50);

/// A worker before its session.
struct FakeWorker {
    number: usize,
    tls: Arc<ClientConfig>,
    managers: Vec<SocketAddr>,
}

/// Runs `COUNT` workers: `fake-workers TOKEN NAME COUNT MANAGER...`.
pub fn main(words: &[String]) -> anyhow::Result<()> {
    let [token, name, count, managers @ ..] = words else { bail!("wanted: TOKEN NAME COUNT MANAGER...") };
    let (token, count) = (JoinToken::parse(token)?, count.parse()?);
    let managers: Vec<SocketAddr> = managers.iter().map(|it| it.parse()).collect::<Result<_, _>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let start = Instant::now();
    let workers = runtime.block_on(join_all(&token, name, count, &managers))?;
    print_line(&format!("joined {}", start.elapsed().as_secs_f64()))?;
    let command = read_command()?;
    ensure!(command == "open", "expected open, got {command:?}");
    let start = Instant::now();
    let (opened, mut openings) = mpsc::channel(count);
    let received: Arc<[NetworkUpdates]> = (0..count).map(|_| NetworkUpdates::default()).collect();
    for worker in workers {
        let updates = received.clone();
        runtime.spawn(worker.run(opened.clone(), updates));
    }
    for _ in 0..count {
        runtime.block_on(openings.recv()).context("a worker ended")?;
    }
    print_line(&format!("opened {}", start.elapsed().as_secs_f64()))?;
    while let Ok(line) = read_command() {
        match line.as_str() {
            "watch" => {}
            "watch-withdrawal" => {
                await_withdrawal(&received)?;
                continue;
            }
            _ => break,
        }
        let counts =
            |it: &NetworkUpdates| [&it.count, &it.bytes].map(|number| number.load(Ordering::Relaxed));
        // An update of the change before would be taken for one of this change.
        let mut before: Vec<[u64; 2]> = received.iter().map(counts).collect();
        loop {
            std::thread::sleep(QUIET);
            let now: Vec<[u64; 2]> = received.iter().map(counts).collect();
            if now == before {
                break;
            }
            before = now;
        }
        print_line("watching 0")?;
        let is_told = |(worker, [count, _]): (&NetworkUpdates, &[u64; 2])| counts(worker)[0] > *count;
        while !received.iter().zip(&before).all(is_told) {
            std::thread::sleep(LOOK);
        }
        let bytes: u64 =
            received.iter().zip(&before).map(|(worker, [_, bytes])| counts(worker)[1] - bytes).sum();
        print_line(&format!("watched {}", bytes as f64 / count as f64))?;
    }
    Ok(())
}

/// What a worker was told about the cluster's network since its start.
#[derive(Default)]
struct NetworkUpdates {
    count: AtomicU64,
    bytes: AtomicU64,
    /// How often it was told that all have acknowledged a withdrawal.
    withdrawals: AtomicU64,
    /// It stops a task only once it was told that, as a real worker does.
    stops_after_withdrawal: AtomicBool,
}

/// Prints when one of the workers is told that all have acknowledged a withdrawal, or when managers wait no longer.
fn await_withdrawal(workers: &[NetworkUpdates]) -> anyhow::Result<()> {
    workers.iter().for_each(|worker| worker.stops_after_withdrawal.store(true, Ordering::Relaxed));
    let count = || workers.iter().map(|worker| worker.withdrawals.load(Ordering::Relaxed)).sum::<u64>();
    let (before, start) = (count(), Instant::now());
    print_line("watching 0")?;
    while count() == before && start.elapsed() < WITHDRAWAL_TIMEOUT {
        std::thread::sleep(LOOK);
    }
    print_line("withdrawn 0")
}

fn print_line(keyword: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{keyword}")?;
    Ok(out.flush()?)
}

/// The next command; it is empty at the end of the standard input.
fn read_command() -> anyhow::Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}

/// Each over its own connection, using the managers in turn.
async fn join_all(
    token: &JoinToken,
    name: &str,
    count: usize,
    managers: &[SocketAddr],
) -> anyhow::Result<Vec<FakeWorker>> {
    let mut lanes = JoinSet::new();
    for lane in 0..JOINING {
        let (token, name, managers) = (token.clone(), name.to_owned(), managers.to_vec());
        lanes.spawn(async move {
            let mut workers = Vec::new();
            for number in (lane..count).step_by(JOINING) {
                let own = format!("{name}-{number}");
                let tls = join(&token, &own, managers.iter().cycle().skip(number)).await?;
                workers.push(FakeWorker { number, tls, managers: managers.clone() });
            }
            anyhow::Ok(workers)
        });
    }
    let joined: Vec<_> = lanes.join_all().await.into_iter().collect::<Result<_, _>>()?;
    Ok(joined.into_iter().flatten().collect())
}

/// Tries one manager after the other.
async fn join(
    token: &JoinToken,
    name: &str,
    managers: impl Iterator<Item = &SocketAddr>,
) -> anyhow::Result<Arc<ClientConfig>> {
    let key = PrivateKey::generate()?;
    let mut refused = None;
    for manager in managers.take(TRIES) {
        match ask(token, name, &key, *manager).await {
            Ok(tls) => return Ok(tls),
            Err(error) => refused = Some(error),
        }
        // Not a wait for a condition: the next attempt follows.
        sleep(AGAIN).await;
    }
    Err(refused.context("no manager to ask")?.context(format!("{name} could not join")))
}

async fn ask(
    token: &JoinToken,
    name: &str,
    key: &PrivateKey,
    manager: SocketAddr,
) -> anyhow::Result<Arc<ClientConfig>> {
    let stream = TcpStream::connect(manager).await?;
    stream.set_nodelay(true)?;
    let (secure, roots) = connect_to_join(stream, token.authority(), CONNECT_TIMEOUT).await?;
    let request = v1::JoinRequest {
        token: token.reveal().to_string(),
        certificate_request: CertificateRequest::create(key)?,
        name: name.to_owned(),
        description: Some(description(0)),
        taints: Vec::new(),
    };
    let answer = MembershipClient::new(channel_over(secure).await?).join(request).await?.into_inner();
    let credentials = Credentials::new(answer.certificate, key.clone())?;
    Ok(client_config(&roots, Some(ReloadableCertificate::new(&credentials)))?)
}

/// Its data address has that number.
fn description(number: usize) -> v1::NodeDescription {
    v1::NodeDescription {
        resources: Some(v1::Resources { cpu_milli: 1_000_000, memory_bytes: 1 << 40 }),
        architecture: "amd64".into(),
        os: "linux".into(),
        kernel: "6".into(),
        runtime: "fake".into(),
        warren_version: env!("CARGO_PKG_VERSION").into(),
        address: "127.0.0.1".into(),
        data_address: Ipv4Addr::from(0x0a00_0001 + number as u32).to_string(),
        disk_bytes: 1 << 40,
        ..Default::default()
    }
}

impl FakeWorker {
    /// Keeps a session, and reports the first welcome message.
    async fn run(self, opened: mpsc::Sender<()>, updates: Arc<[NetworkUpdates]>) {
        let mut has = None;
        for turn in self.number.. {
            let address = self.managers[turn % self.managers.len()];
            // Whatever ended it: the next manager is tried.
            let _ = self.session(address, &opened, &mut has, &updates[self.number]).await;
            // Not a wait for a condition: a manager that has failed is tried again.
            sleep(AGAIN).await;
        }
    }

    async fn session(
        &self,
        address: SocketAddr,
        opened: &mpsc::Sender<()>,
        has: &mut Option<v1::AssignmentVersion>,
        updates: &NetworkUpdates,
    ) -> anyhow::Result<()> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let secure = connect(stream, Arc::clone(&self.tls), CONNECT_TIMEOUT).await?;
        let mut client = SessionsClient::new(channel_over(secure).await?).max_decoding_message_size(64 << 20);
        let (frames, queue) = mpsc::channel(QUEUE);
        let hello =
            v1::Hello { description: Some(description(self.number)), version: *has, ..Default::default() };
        send(&frames, ToManager::Hello(Box::new(hello))).await?;
        let established = timeout(WELCOME, client.establish(ReceiverStream::new(queue)));
        let mut inbound = established.await??.into_inner();
        let (mut states, mut reports, mut network_version) = (BTreeMap::new(), 0, None);
        let (mut stopping, mut withdrawn) = (Vec::new(), BTreeSet::new());
        // Jittered, as the real one is.
        let jitter = Duration::from_millis(self.number as u64 * 7 % 3_000);
        let mut sync = interval_at(tokio::time::Instant::now() + jitter, Duration::from_secs(3));
        let mut heartbeat = interval_at(tokio::time::Instant::now() + jitter, Duration::from_secs(5));
        sync.set_missed_tick_behavior(MissedTickBehavior::Delay);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut overdue = Vec::new();
            let frame = tokio::select! {
                frame = inbound.message() => frame?.context("the manager ended it")?.frame,
                _ = sync.tick() => {
                    let request = v1::SyncRequest { version: *has, network_version };
                    send(&frames, ToManager::Sync(request)).await?;
                    // A real worker does not wait for ever either.
                    overdue = std::mem::take(&mut stopping);
                    withdrawn.extend(overdue.iter().map(|task: &v1::TaskAssignment| task.id.clone()));
                    None
                }
                _ = heartbeat.tick() => {
                    let usage = Some(v1::NodeUsage::default());
                    let heartbeat = v1::Heartbeat { usage, ..Default::default() };
                    send(&frames, ToManager::Heartbeat(heartbeat)).await?;
                    continue;
                }
            };
            let tasks = match frame {
                Some(FromManager::Welcome(_)) => {
                    opened.send(()).await.ok();
                    continue;
                }
                Some(FromManager::Network(update)) => {
                    network_version = update.version;
                    updates.bytes.fetch_add(update.encoded_len() as u64, Ordering::Relaxed);
                    updates.count.fetch_add(1, Ordering::Relaxed);
                    let received = v1::NetworkAck { version: network_version };
                    send(&frames, ToManager::NetworkAck(received)).await?;
                    continue;
                }
                Some(FromManager::Withdrawn(v1::EndpointsWithdrawn { task_ids })) => {
                    updates.withdrawals.fetch_add(1, Ordering::Relaxed);
                    withdrawn.extend(task_ids);
                    std::mem::take(&mut stopping)
                }
                Some(FromManager::Assignment(assignment)) => {
                    *has = assignment.version;
                    assignment.tasks
                }
                Some(FromManager::Diff(diff)) => {
                    *has = diff.version;
                    states.retain(|id, _| {
                        !diff.removed.contains(id) && diff.retained.iter().all(|log| log.task_id != *id)
                    });
                    diff.changed
                }
                _ if !overdue.is_empty() => overdue,
                _ => continue,
            };
            let waits = updates.stops_after_withdrawal.load(Ordering::Relaxed);
            let is_held = |task: &v1::TaskAssignment| {
                let stops = task.desired() == v1::DesiredTaskState::Shutdown;
                waits && stops && !withdrawn.contains(&task.id)
            };
            let (held, tasks): (Vec<_>, Vec<_>) = tasks.into_iter().partition(is_held);
            stopping.extend(held);
            let changes: Vec<v1::TaskReport> =
                tasks.iter().filter_map(|task| report(task, &mut states)).collect();
            if !changes.is_empty() {
                reports += 1;
                send(&frames, ToManager::Reports(v1::ReportBatch { number: reports, reports: changes }))
                    .await?;
            }
        }
    }
}

async fn send(frames: &mpsc::Sender<v1::WorkerFrame>, frame: ToManager) -> anyhow::Result<()> {
    Ok(frames.send(v1::WorkerFrame { frame: Some(frame) }).await?)
}

/// The report for a task, if it changed.
fn report(task: &v1::TaskAssignment, states: &mut BTreeMap<String, v1::TaskState>) -> Option<v1::TaskReport> {
    let state = match task.desired() {
        v1::DesiredTaskState::Unspecified => return None,
        v1::DesiredTaskState::Ready => v1::TaskState::Ready,
        v1::DesiredTaskState::Running => v1::TaskState::Running,
        v1::DesiredTaskState::Shutdown | v1::DesiredTaskState::Remove => v1::TaskState::Shutdown,
    };
    if states.insert(task.id.clone(), state) == Some(state) {
        return None;
    }
    let (runs, over) = (state == v1::TaskState::Running, state == v1::TaskState::Shutdown);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(v1::TaskReport {
        task_id: task.id.clone(),
        attempt: 1,
        state: state.into(),
        since: u64::try_from(since.as_millis()).unwrap_or_default(),
        ready: runs,
        removed: over,
        image: if task.digest.is_empty() { DIGEST.into() } else { String::new() },
        ..Default::default()
    })
}
