//! Any manager serves workers, and they move to another one when theirs fails.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tonic::Status;
use warren_proto::v1;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::tasks_client::TasksClient;
use warren_runtime::ContainerId;
use warren_security::Credentials;
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;
use warren_worker::Worker;

use super::group::{ManagerGroup, repeated};
use crate::agents::AgentMachine;
use crate::fixture::{WAIT_DEADLINE, new_id, spec};
use crate::joining::JoiningMachine;
use crate::worker::{ScriptedWorker, report};

impl ManagerGroup {
    /// Another node, without a session so far.
    pub async fn node(&self, name: &str) -> Credentials {
        let token = self.token(NodeRole::Worker).await;
        let foreign = self.any_running().channel(&self.roots, None).await;
        let joining = JoiningMachine::new(name);
        repeated(|| joining.join_over(foreign.clone(), &token)).await.unwrap()
    }

    /// A session of this node at this manager, with this state of the agent.
    pub async fn session(
        &self,
        number: usize,
        node: &Credentials,
        version: Option<v1::AssignmentVersion>,
    ) -> ScriptedWorker {
        let channel = self.hosts[number].channel(&self.roots, Some(node)).await;
        ScriptedWorker::connect(channel, version).await.welcomed().await
    }

    pub async fn run(&self, number: usize, name: &str, replicas: u32) {
        let request = v1::CreateServiceRequest {
            id: new_id().to_string(),
            spec: Some((&spec(name, replicas)).into()),
            ..Default::default()
        };
        let services = self.services(number).await;
        repeated(|| async { services.clone().create(request.clone()).await }).await.unwrap();
    }

    async fn tasks(&self, number: usize) -> Result<Vec<v1::Task>, Status> {
        let mut tasks = TasksClient::new(self.channel(number).await);
        let request = v1::ListTasksRequest { page_size: 1_000, current: true, ..Default::default() };
        Ok(tasks.list(request).await?.into_inner().tasks)
    }

    /// Waits until all tasks, as this manager shows them, are as `expected`, and there are that many.
    pub async fn shows_tasks(
        &self,
        number: usize,
        what: &str,
        count: usize,
        expected: impl Fn(&v1::Task) -> bool,
    ) -> Vec<v1::Task> {
        eventually_async(WAIT_DEADLINE, what, || async {
            let tasks = self.tasks(number).await.map_err(|status| status.to_string())?;
            let all = tasks.len() == count && tasks.iter().all(&expected);
            if all { Ok(tasks) } else { Err(format!("{tasks:#?}")) }
        })
        .await
    }

    /// The name of the manager with the session of this node.
    pub async fn served_by(&self, number: usize, node: &str) -> String {
        let request = v1::Reference { reference: node.to_owned() };
        let nodes = NodesClient::new(self.channel(number).await);
        let shown = repeated(|| async { nodes.clone().get(request.clone()).await }).await;
        shown.unwrap().into_inner().manager
    }
}

pub fn runs(task: &v1::Task) -> bool {
    task.state() == v1::TaskState::Running
}

/// The tasks with their attempts.
pub fn attempts(tasks: &[v1::Task]) -> BTreeMap<String, u32> {
    tasks.iter().map(|task| (task.id.clone(), task.attempt)).collect()
}

/// The running processes of each machine, by container.
pub async fn processes(workers: &[(AgentMachine, Worker)]) -> Vec<BTreeMap<String, u32>> {
    let mut found = Vec::new();
    for (machine, _) in workers {
        found.push(machine.processes().await);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_at_follower_reaches_every_manager() {
    let group = ManagerGroup::of_three().await;
    let (leader, follower) = group.leader_and_follower().await;
    let other = (0..3).find(|number| ![leader, follower].contains(number)).unwrap();
    let node = group.node("n1").await;
    let mut worker = group.session(follower, &node, None).await;
    let mut known = worker.welcome.settings.as_ref().unwrap().managers.clone();
    let mut addresses: Vec<String> = group.hosts.iter().map(|host| host.address().to_string()).collect();
    known.sort();
    addresses.sort();
    assert_eq!(known, addresses, "a worker gets the addresses of managers");
    for at in [leader, other] {
        assert_eq!(group.served_by(at, "n1").await, group.hosts[follower].name);
    }
    group.run(other, "web", 2).await;
    worker.has("two tasks", |tasks| tasks.len() == 2).await;
    // Progress is not stored, so it is requested from the manager with the session.
    let id = worker.tasks.keys().next().unwrap().clone();
    let words = "its image is unpacked";
    let starting = v1::TaskReport { reason: words.into(), ..report(&id, v1::TaskState::Starting) };
    worker.report(vec![starting]).await;
    for at in [leader, follower, other] {
        // Without it, if the other manager does not answer within a second.
        eventually_async(WAIT_DEADLINE, "the progress", || async {
            let request = v1::Reference { reference: id.clone() };
            let shown = TasksClient::new(group.channel(at).await).get(request).await;
            let shown = shown.map_err(|status| status.to_string())?.into_inner();
            let is_shown = (shown.state(), shown.reason.as_str()) == (v1::TaskState::Starting, words);
            if is_shown { Ok(()) } else { Err(format!("at {at}: {shown:?}")) }
        })
        .await;
    }
    worker.run_all().await;
    for at in [leader, follower, other] {
        assert!(repeated(|| group.tasks(at)).await.unwrap().iter().all(runs), "at {at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_continues_at_another_manager() {
    let mut group = ManagerGroup::of_three().await;
    let node = group.node("n1").await;
    let first = group.follower().await;
    let mut worker = group.session(first, &node, None).await;
    group.run(first, "web", 2).await;
    worker.has("two tasks", |tasks| tasks.len() == 2).await;
    worker.run_all().await;
    let (version, tasks, session) = (worker.version, worker.tasks.clone(), worker.welcome.session);
    let received = std::mem::take(&mut worker.tasks);
    group.hosts[first].stop().await;
    worker.end_with_manager().await;
    for next in (0..3).filter(|next| *next != first) {
        let mut worker = group.session(next, &node, version).await;
        worker.tasks = received.clone();
        worker.version = version;
        worker.sync().await;
        let index = |version: Option<v1::AssignmentVersion>| version.unwrap().index;
        assert!(worker.welcome.session > session && index(worker.version) >= index(version));
        assert_eq!(worker.tasks.keys().collect::<Vec<_>>(), tasks.keys().collect::<Vec<_>>());
        let shown = group.shows_tasks(next, "the tasks to run", 2, runs).await;
        assert!(shown.iter().all(|task| tasks.contains_key(&task.id)), "{shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_reconnects_and_reports_missed_changes() {
    let mut group = ManagerGroup::of_three().await;
    let (node, machine) = (group.node("n1").await, AgentMachine::new().await);
    let first = group.follower().await;
    // It learns the others in its first session.
    let managers: Vec<SocketAddr> = vec![group.hosts[first].address()];
    let agent = machine.agent_of(managers, &node, group.roots.clone()).await;
    group.run(first, "web", 3).await;
    let tasks = group.shows_tasks(first, "the tasks to run", 3, runs).await;
    let before = machine.processes().await;
    group.hosts[first].stop().await;
    let ended = ContainerId::parse(&tasks[0].id).unwrap();
    assert!(machine.runtime.end_process(&ended, 7, false));
    let next = group.follower().await;
    let again = |task: &v1::Task| runs(task) && (task.id != tasks[0].id || task.attempt == 2);
    group.shows_tasks(next, "what ended to be told and to run again", 3, again).await;
    let mut after = machine.processes().await;
    let again = (after.remove(&tasks[0].id), before.get(&tasks[0].id).copied());
    assert!(again.0.is_some() && again.0 != again.1, "{again:?}");
    assert!(after.len() == 2 && after.iter().all(|(id, pid)| before.get(id) == Some(pid)), "{after:?}");
    assert_ne!(group.served_by(next, "n1").await, group.hosts[first].name);
    agent.stop().await.unwrap();
}
