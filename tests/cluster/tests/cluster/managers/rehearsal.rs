//! What a rehearsal begins with and how it ends: three managers, five workers, tasks, and clients whose history is
//! checked, while its test replaces, revokes or removes something.

use std::collections::BTreeMap;

use futures::future::join_all;
use warren_proto::v1;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_security::Credentials;
use warren_test_history::workload::RegisterWorkload;
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;
use warren_worker::Worker;

use super::group::{ManagerGroup, repeated, repeated_removal};
use super::host::ManagerHost;
use super::registers::{finish, more_writes};
use crate::agents::AgentMachine;
use crate::dial::until_accepted;
use crate::fixture::WAIT_DEADLINE;
use crate::joining::JoiningMachine;

const TASKS: u32 = 8;

impl ManagerGroup {
    /// A machine that joins with its own key and these taints, and its agent. The node is READY.
    pub async fn worker(&self, name: &str, taints: &[&str]) -> (AgentMachine, Worker) {
        let machine = AgentMachine::new().await;
        let store = machine.membership();
        let (key, taints) = (store.ensure_key().unwrap(), taints.iter().map(|taint| (*taint).to_owned()));
        let joining = JoiningMachine { key, taints: taints.collect(), ..JoiningMachine::new(name) };
        let token = self.token(NodeRole::Worker).await;
        let channel = self.any_running().channel(&self.roots, None).await;
        let joined = repeated(|| joining.join_over(channel.clone(), &token)).await.unwrap();
        store.complete(&self.roots, joined.certificate_pem()).unwrap();
        let agent = machine.joined_agent(self.addresses()).await;
        self.node_is(name, v1::NodeStatus::Ready).await;
        (machine, agent)
    }

    /// Waits until a node has this status.
    pub async fn node_is(&self, node: &str, expected: v1::NodeStatus) {
        eventually_async(WAIT_DEADLINE, "the status of a node", || async {
            let request = v1::Reference { reference: node.to_owned() };
            let shown = NodesClient::new(self.any_channel().await).get(request).await;
            let shown = shown.map_err(|status| status.to_string())?.into_inner();
            if shown.status() == expected { Ok(()) } else { Err(format!("{shown:#?}")) }
        })
        .await;
    }

    pub async fn remove_node(&self, node: &str) {
        let through = self.hosts.iter().position(ManagerHost::is_running).expect("some manager runs");
        self.remove_node_through(through, node).await;
    }

    /// The same, through this host's manager.
    pub async fn remove_node_through(&self, through: usize, node: &str) {
        let request = v1::RemoveNodeRequest { reference: node.to_owned(), force: true };
        let nodes = NodesClient::new(self.channel(through).await);
        repeated_removal(|| async { nodes.clone().remove(request.clone()).await }).await.unwrap();
    }
}

pub struct Rehearsal {
    pub group: ManagerGroup,
    /// Those that run the tasks.
    pub workers: Vec<(AgentMachine, Worker)>,
    /// A worker that has joined and is off.
    pub away: AgentMachine,
    /// Of a worker that was removed.
    pub removed: Credentials,
    /// Until [`Rehearsal::finish`].
    registers: Option<RegisterWorkload>,
    /// The attempt and the process of each task.
    tasks: BTreeMap<String, (u32, u32)>,
}

impl Rehearsal {
    /// Tasks run and clients write when this returns.
    pub async fn start() -> Self {
        let group = ManagerGroup::of_three().await;
        let joining = ["w1", "w2", "w3", "w4"].map(|name| Box::pin(group.worker(name, &[])));
        let ((away, agent), removed, workers) = futures::join!(
            group.worker("away", &["away:NoSchedule"]),
            group.node("removed"),
            join_all(joining)
        );
        agent.stop().await.unwrap();
        group.remove_node("removed").await;
        group.run(0, "web", TASKS).await;
        let tasks = running(&group, &workers).await;
        let registers = Some(group.start_registers(4, 85));
        let started = Self { group, workers, away, removed, registers, tasks };
        started.more_writes().await;
        started
    }

    /// Waits until more writes are acknowledged.
    pub async fn more_writes(&self) {
        more_writes(self.registers.as_ref().expect("the clients run")).await;
    }

    /// Removes a worker that runs tasks, and returns its credentials. It stops its tasks, which others then run.
    pub async fn remove_worker(&mut self) -> Credentials {
        let (machine, agent) = self.workers.pop().expect("there are workers");
        let (credentials, _) = machine.member();
        let stopped = machine.processes().await;
        assert!(!stopped.is_empty());
        self.tasks.retain(|task, _| !stopped.contains_key(task));
        self.group.remove_node(credentials.identity().id()).await;
        eventually_async(WAIT_DEADLINE, "the removed worker to stop its tasks", || async {
            let left = machine.processes().await;
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
        agent.stop().await.unwrap();
        credentials
    }

    /// Ends the clients: no write was lost, and no task was restarted.
    pub async fn finish(&mut self) {
        self.more_writes().await;
        finish(self.registers.take().expect("the clients run"));
        let mut after = running(&self.group, &self.workers).await;
        after.retain(|task, _| self.tasks.contains_key(task));
        assert_eq!(after, self.tasks, "a task was restarted");
    }

    /// The worker that was away comes back, and the one that was removed does not.
    pub async fn bring_back(&self) -> Worker {
        let agent = self.away.joined_agent(self.group.addresses()).await;
        eventually_async(WAIT_DEADLINE, "the worker that was away to be ready", || async {
            agent.ready().map_err(|missing| missing.to_string())
        })
        .await;
        self.group.node_is("away", v1::NodeStatus::Ready).await;
        let host = self.group.any_running();
        until_accepted(host.address(), &self.group.roots, &self.removed, false).await;
        let anonymous = host.channel(&self.group.roots, None).await;
        let version = Some(v1::AssignmentVersion { incarnation: 1, index: 1 });
        let request = v1::CheckNodeRequest { node_id: self.removed.identity().id().to_owned(), version };
        let sessions = SessionsClient::new(anonymous);
        let refused = repeated(|| async { sessions.clone().check_node(request.clone()).await }).await;
        let refused = refused.unwrap_err();
        assert!(refused.message().contains("was removed"), "{refused:?}");
        agent
    }

    /// Stops the agents, and these.
    pub async fn stop(self, others: impl IntoIterator<Item = Worker>) {
        for agent in self.workers.into_iter().map(|(_, agent)| agent).chain(others) {
            agent.stop().await.unwrap();
        }
    }
}

/// Waits until all tasks run on these workers.
async fn running(group: &ManagerGroup, workers: &[(AgentMachine, Worker)]) -> BTreeMap<String, (u32, u32)> {
    let runs = |task: &v1::Task| task.state() == v1::TaskState::Running;
    let tasks = group.shows_tasks(0, "tasks to run", TASKS as usize, runs).await;
    let mut processes = BTreeMap::new();
    for (machine, _) in workers {
        processes.extend(machine.processes().await);
    }
    let with_process = |task: v1::Task| {
        let process = processes[&task.id];
        (task.id, (task.attempt, process))
    };
    tasks.into_iter().map(with_process).collect()
}
