//! Requests to one manager about workers with a session at another manager.

use std::time::{Duration, Instant};

use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::images_client::ImagesClient;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::log_entry::Entry;
use warren_proto::v1::logs_client::LogsClient;
use warren_proto::v1::managers_client::ManagersClient;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::tasks_client::TasksClient;
use warren_proto::v1::watch_event::Change;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_proto::{Problem, v1};
use warren_testkit::wait::eventually_async;

use super::group::{ManagerGroup, repeated};
use crate::dial::until_accepted;
use crate::exec::{STARTED, in_task};
use crate::fixture::WAIT_DEADLINE;
use crate::worker::{ScriptedWorker, report};

/// The timeout of a silent node, and the same time again for a new leader.
const DOWN_AFTER: Duration = Duration::from_secs(8);

/// A group, a worker at a follower, and the other managers: the leader first.
struct RemoteWorkerGroup {
    group: ManagerGroup,
    node: warren_security::Credentials,
    at: usize,
    others: [usize; 2],
    worker: ScriptedWorker,
}

impl RemoteWorkerGroup {
    async fn new() -> Self {
        let group = ManagerGroup::of_three().await;
        let (leader, at) = group.leader_and_follower().await;
        let other = (0..3).find(|number| ![leader, at].contains(number)).unwrap();
        let node = group.node("n1").await;
        let worker = group.session(at, &node, None).await;
        Self { group, node, at, others: [leader, other], worker }
    }

    /// A running task of the worker.
    async fn task(&mut self) -> String {
        self.group.run(self.at, "web", 1).await;
        self.worker.has("the task", |tasks| tasks.len() == 1).await;
        self.worker.run_all().await;
        self.worker.tasks.keys().next().unwrap().clone()
    }

    async fn node_at(&self, number: usize) -> v1::Node {
        let request = v1::Reference { reference: "n1".into() };
        let nodes = NodesClient::new(self.group.channel(number).await);
        repeated(|| async { nodes.clone().get(request.clone()).await }).await.unwrap().into_inner()
    }
}

async fn listed_background_tasks(channel: &Channel) -> v1::ListBackgroundTasksResponse {
    let mut cluster = ClusterClient::new(channel.clone());
    cluster.list_background_tasks(v1::ListBackgroundTasksRequest {}).await.unwrap().into_inner()
}

async fn logs(channel: Channel, follow: bool) -> Streaming<v1::LogEntry> {
    let request = v1::ReadLogsRequest { service: "web".into(), follow, ..Default::default() };
    let client = LogsClient::new(channel);
    repeated(|| async { client.clone().read(request.clone()).await }).await.unwrap().into_inner()
}

fn line(at_ns: u64) -> Frame {
    Frame::Lines(v1::LogLines { lines: vec![v1::LogLine { at_ns, ..Default::default() }] })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_come_by_the_manager_that_has_the_session() {
    let mut apart = RemoteWorkerGroup::new().await;
    apart.task().await;
    for number in apart.others {
        let mut entries = logs(apart.group.channel(number).await, false).await;
        let stream = timeout(WAIT_DEADLINE, apart.worker.attach()).await.expect("lines are asked for");
        stream.send(line(7)).await;
        stream.send(line(8)).await;
        stream.send(Frame::Done(v1::StreamDone {})).await;
        let mut seen = Vec::new();
        while let Some(entry) = timeout(WAIT_DEADLINE, entries.message()).await.unwrap().unwrap() {
            let Some(Entry::Line(line)) = entry.entry else { panic!("trouble: {entry:?}") };
            seen.push(line.at_ns);
        }
        assert_eq!(seen, [7, 8]);
        stream.wait_closed().await;
    }
    // The end of a client's stream ends the worker's stream.
    let entries = logs(apart.group.channel(apart.others[0]).await, true).await;
    let stream = timeout(WAIT_DEADLINE, apart.worker.attach()).await.expect("lines are asked for");
    drop(entries);
    timeout(WAIT_DEADLINE, stream.wait_closed()).await.expect("the worker sees the end of the stream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_runs_by_the_manager_that_has_the_session() {
    use v1::exec_request::Message as Input;
    use v1::exec_response::Message as Output;
    let mut apart = RemoteWorkerGroup::new().await;
    let task = apart.task().await;
    let input = |message| v1::ExecRequest { message: Some(message) };
    for number in apart.others {
        let (requests, queue) = tokio::sync::mpsc::channel(4);
        requests.send(input(Input::Target(in_task(&task)))).await.unwrap();
        let mut tasks = TasksClient::new(apart.group.channel(number).await);
        let (started, mut stream) =
            tokio::join!(tasks.exec(ReceiverStream::new(queue)), apart.worker.attach());
        let mut responses = started.unwrap().into_inner();
        stream.send(STARTED).await;
        requests.send(input(Input::Input("in".into()))).await.unwrap();
        requests.send(input(Input::EndOfInput(v1::EndOfInput {}))).await.unwrap();
        assert_eq!(stream.receive().await.unwrap(), Some(Frame::Data("in".into())));
        assert_eq!(stream.receive().await.unwrap(), Some(Frame::End(v1::EndOfData {})));
        // A client that sends no more still reads.
        drop(requests);
        stream.send(Frame::ReceivedBytes(2)).await;
        stream.send(Frame::Data("out".into())).await;
        stream.send(Frame::StderrData("error".into())).await;
        stream.send(Frame::ExitCode(3)).await;
        let mut seen = Vec::new();
        while let Some(response) = timeout(WAIT_DEADLINE, responses.message()).await.unwrap().unwrap() {
            seen.extend(response.message);
        }
        let started = v1::ExecStarted { task_id: task.clone(), node_name: "n1".into() };
        let expected = [
            Output::Started(started),
            Output::ConsumedInput(2),
            Output::Stdout("out".into()),
            Output::Stderr("error".into()),
            Output::ExitCode(3),
        ];
        assert_eq!(seen, expected);
        timeout(WAIT_DEADLINE, stream.wait_closed()).await.expect("the stream is closed");
    }
    // The end of a client's call ends the worker's stream.
    let (requests, queue) = tokio::sync::mpsc::channel(4);
    requests.send(input(Input::Target(in_task(&task)))).await.unwrap();
    let mut tasks = TasksClient::new(apart.group.channel(apart.others[0]).await);
    let (started, stream) = tokio::join!(tasks.exec(ReceiverStream::new(queue)), apart.worker.attach());
    drop((started, requests));
    timeout(WAIT_DEADLINE, stream.wait_closed()).await.expect("the worker sees the end of the stream");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_stream_refusal_reaches_every_manager() {
    let mut apart = RemoteWorkerGroup::new().await;
    apart.task().await;
    let mut entries = logs(apart.group.channel(apart.others[1]).await, false).await;
    let stream_id = apart.worker.open().await;
    apart.worker.send(Say::Opened(v1::StreamOpened { stream_id, error: "too many".into() })).await;
    let entry = timeout(WAIT_DEADLINE, entries.message()).await.unwrap().unwrap().unwrap();
    assert_eq!(entry.entry, Some(Entry::GapReason("too many".into())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_is_passed_on_whole() {
    let mut apart = RemoteWorkerGroup::new().await;
    let archive: Vec<u8> = (0..4u32 << 20).map(|n| (n / 7) as u8).collect();
    let target = v1::import_request::Message::Target(v1::ImportTarget { nodes: vec!["n1".into()] });
    let chunks =
        archive.chunks(256 << 10).map(|chunk| v1::import_request::Message::Chunk(chunk.to_vec().into()));
    let messages: Vec<_> = std::iter::once(target).chain(chunks).collect();
    let mut images = ImagesClient::new(apart.group.channel(apart.others[1]).await);
    let reported = async {
        let requests = messages.into_iter().map(|message| v1::ImportRequest { message: Some(message) });
        let mut reported = images.import(tokio_stream::iter(requests)).await.unwrap().into_inner();
        let mut events = Vec::new();
        while let Some(progress) = reported.message().await.unwrap() {
            events.extend(progress.event);
        }
        events
    };
    let serve = async {
        let mut stream = apart.worker.attach().await;
        let received = stream.archive().await;
        stream.send(Frame::Done(v1::StreamDone {})).await;
        stream.wait_closed().await;
        received
    };
    let (reported, received) =
        timeout(WAIT_DEADLINE, async { tokio::join!(reported, serve) }).await.expect("it ends");
    assert!(received.as_deref() == Some(&archive[..]), "the archive is not the one that was sent");
    assert_eq!(reported, [Event::Done(v1::NodeDone {})]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_sees_the_progress_of_tasks_everywhere() {
    let mut apart = RemoteWorkerGroup::new().await;
    apart.group.run(apart.at, "web", 1).await;
    apart.worker.has("the task", |tasks| tasks.len() == 1).await;
    let id = apart.worker.tasks.keys().next().unwrap().clone();
    let mut watches = Vec::new();
    for number in apart.others {
        let mut cluster = ClusterClient::new(apart.group.channel(number).await);
        watches.push(cluster.watch(v1::WatchRequest::default()).await.unwrap().into_inner());
    }
    // Events from before the first reader are received as well.
    let starting = v1::TaskReport { reason: "it starts".into(), ..report(&id, v1::TaskState::Starting) };
    apart.worker.report(vec![starting]).await;
    for watch in &mut watches {
        let seen = async {
            loop {
                match watch.message().await.unwrap().unwrap().change {
                    Some(Change::Task(task)) if task.state() == v1::TaskState::Starting => return task,
                    _ => {}
                }
            }
        };
        let task = timeout(WAIT_DEADLINE, seen).await.expect("progress is seen");
        assert_eq!((task.id, task.reason), (id.clone(), "it starts".to_owned()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_and_checks_come_from_the_session_manager() {
    let mut apart = RemoteWorkerGroup::new().await;
    let task_id = apart.task().await;
    apart.worker.heartbeat().await;
    let usage = Some(v1::TaskUsage { pids: 3, ..Default::default() });
    let reported = v1::TaskStats { task_id: task_id.clone(), usage, ..Default::default() };
    let background_tasks = vec![v1::BackgroundTask { name: "worker.relist".into(), ..Default::default() }];
    let usage = Some(v1::NodeUsage { cpu_milli: 7, ..Default::default() });
    apart.worker.send(Say::Heartbeat(v1::Heartbeat { usage, background_tasks, tasks: vec![reported] })).await;
    apart.worker.sync().await;
    let own = format!("m{}", apart.at + 1);
    for number in apart.others {
        let channel = apart.group.channel(number).await;
        // What a slow manager does not answer within a second is left out.
        let reported = eventually_async(WAIT_DEADLINE, "all to answer", || async {
            let node = apart.node_at(number).await.usage.map(|usage| usage.cpu_milli);
            let request = v1::Reference { reference: task_id.clone() };
            let task = TasksClient::new(channel.clone()).get(request).await;
            let task = task.map_err(|status| status.to_string())?.into_inner();
            let task = task.usage.map(|usage| usage.pids);
            let reported = listed_background_tasks(&channel).await;
            let all = (node, task) == (Some(7), Some(3)) && reported.silent.is_empty();
            if all { Ok(reported) } else { Err(format!("{node:?} {task:?} {reported:?}")) }
        })
        .await;
        let v1::ListBackgroundTasksResponse { background_tasks, .. } = reported;
        let whose = |name: &str| -> Vec<_> {
            let named = background_tasks.iter().filter(|reported| reported.name == name);
            named.map(|reported| (reported.manager.as_str(), reported.node.as_str())).collect()
        };
        assert_eq!(whose("worker.relist"), [(own.as_str(), "n1")], "{background_tasks:?}");
        assert_eq!(whose("planner"), [("m1", ""), ("m2", ""), ("m3", "")]);
    }
    // A manager that does not answer is named.
    let [leader, other] = apart.others;
    apart.group.hosts[other].stop().await;
    let channel = apart.group.channel(leader).await;
    eventually_async(WAIT_DEADLINE, "only that one to be silent", || async {
        let reported = listed_background_tasks(&channel).await;
        let silent: Vec<_> = reported.silent.iter().map(|silent| silent.name.as_str()).collect();
        if silent == [format!("m{}", other + 1)] { Ok(()) } else { Err(format!("{reported:?}")) }
    })
    .await;
}

/// A watch would not show newer measurements of nodes, and none of tasks on other managers' workers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_has_no_usage_events() {
    let mut apart = RemoteWorkerGroup::new().await;
    let id = apart.task().await;
    let usage = Some(v1::TaskUsage { pids: 3, ..Default::default() });
    let tasks = vec![v1::TaskStats { task_id: id.clone(), usage, ..Default::default() }];
    apart.worker.send(Say::Heartbeat(v1::Heartbeat { tasks, ..Default::default() })).await;
    apart.worker.sync().await;
    let mut watches = Vec::new();
    for number in [apart.at, apart.others[0]] {
        let channel = apart.group.channel(number).await;
        eventually_async(WAIT_DEADLINE, "the usage of the task", || async {
            let request = v1::Reference { reference: id.clone() };
            let task = TasksClient::new(channel.clone()).get(request).await;
            let task = task.map_err(|status| status.to_string())?.into_inner();
            let pids = task.usage.map(|usage| usage.pids);
            if pids == Some(3) { Ok(()) } else { Err(format!("{pids:?}")) }
        })
        .await;
        watches
            .push(ClusterClient::new(channel).watch(v1::WatchRequest::default()).await.unwrap().into_inner());
    }
    let unready =
        v1::TaskReport { reason: "busy".into(), ready: false, ..report(&id, v1::TaskState::Running) };
    apart.worker.report(vec![unready]).await;
    for watch in &mut watches {
        let seen = async {
            loop {
                match watch.message().await.unwrap().unwrap().change {
                    Some(Change::Task(task)) if task.reason == "busy" => return task,
                    _ => {}
                }
            }
        };
        let task = timeout(WAIT_DEADLINE, seen).await.expect("the change is seen");
        assert_eq!((task.id.as_str(), task.usage), (id.as_str(), None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newest_session_wins_on_any_manager() {
    let mut apart = RemoteWorkerGroup::new().await;
    let id = apart.task().await;
    let (version, old) = (apart.worker.version, apart.worker);
    let mut newer = apart.group.session(apart.others[1], &apart.node, version).await;
    assert!(newer.welcome.session > old.welcome.session);
    let late = v1::ReportBatch { number: 9, reports: vec![report(&id, v1::TaskState::Failed)] };
    old.send_if_open(Say::Reports(late)).await;
    let ended = Problem::from(&old.end().await);
    assert!(["SESSION_SUPERSEDED", "STALE_SESSION"].contains(&&*ended.reason), "{ended:?}");
    newer.version = version;
    newer.sync().await;
    for number in 0..3 {
        let request = v1::Reference { reference: id.clone() };
        let tasks = TasksClient::new(apart.group.channel(number).await);
        let shown = repeated(|| async { tasks.clone().get(request.clone()).await }).await;
        assert_eq!(shown.unwrap().into_inner().state(), v1::TaskState::Running);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_the_leader() {
    let mut apart = RemoteWorkerGroup::new().await;
    apart.group.run(apart.at, "web", 1).await;
    apart.worker.has("the task", |tasks| tasks.len() == 1).await;
    let [leader, other] = apart.others;
    apart.group.hosts[leader].drop_manager().await;
    // The report waits for another leader, and is stored in the same session.
    apart.worker.run_all().await;
    apart.worker.sync().await;
    apart.group.shows_tasks(other, "the task to run", 1, |task| task.state() == v1::TaskState::Running).await;
    assert_eq!(apart.node_at(other).await.manager, apart.group.hosts[apart.at].name);
    // And so are later assignments.
    apart.group.run(other, "db", 1).await;
    apart.worker.has("another task", |tasks| tasks.len() == 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_manager_reports_node_removal() {
    let apart = RemoteWorkerGroup::new().await;
    let mut worker = apart.worker;
    worker.sync().await;
    let seen = worker.version;
    apart.group.remove_node_through(apart.others[1], "n1").await;
    assert_eq!(Problem::from(&worker.end().await).reason, "NODE_REMOVED");
    for host in &apart.group.hosts {
        until_accepted(host.address(), &apart.group.roots, &apart.node, false).await;
        let anonymous = SessionsClient::new(host.channel(&apart.group.roots, None).await);
        for (version, expected) in [(seen, "NODE_REMOVED"), (None, "NODE_UNKNOWN")] {
            let node_id = apart.node.identity().id().to_owned();
            let request = v1::CheckNodeRequest { node_id, version };
            let refused = repeated(|| async { anonymous.clone().check_node(request.clone()).await }).await;
            assert_eq!(Problem::from(&refused.unwrap_err()).reason, expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaderless_manager_redirects_workers() {
    let mut apart = RemoteWorkerGroup::new().await;
    for number in apart.others {
        apart.group.hosts[number].drop_manager().await;
    }
    let no_leader = |status: Status| {
        let problem = Problem::from(&status);
        assert_eq!((problem.code, &*problem.reason), (Code::Unavailable, "NO_LEADER"), "{problem:?}");
    };
    no_leader(apart.worker.end().await);
    let channel = apart.group.hosts[apart.at].channel(&apart.group.roots, Some(&apart.node)).await;
    let began = Instant::now();
    no_leader(ScriptedWorker::connect(channel, None).await.end().await);
    // A call that waits for a leader takes ten seconds.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_session_stays_up_across_leaders() {
    let mut apart = RemoteWorkerGroup::new().await;
    let mut managers = ManagersClient::new(apart.group.channel(apart.others[1]).await);
    let mut cluster = ClusterClient::new(apart.group.channel(apart.at).await);
    let mut events = cluster.watch(v1::WatchRequest::default()).await.unwrap().into_inner();
    let lives = async {
        let (mut pace, began) = (tokio::time::interval(Duration::from_millis(500)), Instant::now());
        let mut handed_over = false;
        while began.elapsed() < DOWN_AFTER + Duration::from_secs(3) {
            pace.tick().await;
            apart.worker.sync().await;
            if !handed_over && began.elapsed() > Duration::from_secs(1) {
                // It fails if leadership has just moved.
                let request = v1::TransferLeadershipRequest::default();
                handed_over = managers.transfer_leadership(request).await.is_ok();
            }
        }
    };
    let down = async {
        loop {
            match events.message().await.unwrap().unwrap().change {
                Some(Change::Node(node)) if node.status() == v1::NodeStatus::Down => return,
                _ => {}
            }
        }
    };
    tokio::select! {
        () = lives => {}
        () = down => panic!("the node was marked DOWN"),
    }
    // A worker that fails does become DOWN, though it was never connected to the leader.
    drop(apart.worker);
    eventually_async(WAIT_DEADLINE, "the node to go down", || async {
        let request = v1::Reference { reference: "n1".into() };
        let mut nodes = NodesClient::new(apart.group.channel(apart.at).await);
        let node = nodes.get(request).await.map_err(|status| status.to_string())?.into_inner();
        if node.status() == v1::NodeStatus::Down { Ok(()) } else { Err(format!("{node:?}")) }
    })
    .await;
}
