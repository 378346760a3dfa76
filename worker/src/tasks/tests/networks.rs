//! Tasks and the network view.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use warren_dns::DnsSockets;
use warren_network::{DirectRoutes, TaskKey};
use warren_runtime::{ContainerId, NetworkMode};
use warren_types::{DataPlane, DesiredTaskState, NetworkAttachment, TaskNetworkMode, TaskState};

use super::*;
use crate::fixtures::{self, catalogue, network_view, task};

fn in_mode(number: u64, mode: TaskNetworkMode) -> TaskAssignment {
    let mut task = task(number);
    task.spec.network = mode;
    task
}

fn in_network(number: u64, name: &str) -> TaskAssignment {
    let attachment = NetworkAttachment { network: name.parse().unwrap(), aliases: BTreeSet::new() };
    in_mode(number, TaskNetworkMode::Networks(vec![attachment]))
}

impl Machine {
    /// The numbers of the networks of a task.
    fn members(&self, number: u64) -> BTreeSet<u32> {
        let key = TaskKey::parse(&task_id(number).to_string()).unwrap();
        self.network.attachment(&key).unwrap().networks
    }
}

impl Agent {
    async fn wait_applied(&self, index: u64) {
        let mut applied = self.applied_network.clone();
        timeout(TIMEOUT, applied.wait_for(|applied| *applied == at(index))).await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn view_is_applied_to_network_and_tasks() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![in_network(1, "tenant"), task(2)]));
    agent.wait_ready(1).await;
    agent.wait_ready(2).await;
    assert_eq!((machine.members(1), machine.members(2)), (BTreeSet::new(), BTreeSet::from([1])));
    let mut view = network_view(3);
    let tenant = catalogue("tenant", 7);
    view.catalogues.insert(tenant.network, Arc::new(tenant));
    // What is wrong with another node is no condition of this one.
    view.peers.insert(3, view.peers[&2].clone());
    machine.view.send_replace(view);
    agent.wait_applied(3).await;
    assert_eq!((machine.members(1), machine.members(2)), (BTreeSet::from([7]), BTreeSet::from([1])));
    let cluster = machine.network.requested().unwrap().cluster;
    assert_eq!((cluster.peers.len(), cluster.networks.len(), cluster.services.len()), (1, 2, 1));
    agent.kill().await;
    // The next agent has it before any task is handled.
    let agent = machine.agent_without_crash(cached(vec![in_network(1, "tenant"), task(2)]));
    agent.wait_ready(1).await;
    agent.wait_applied(3).await;
    assert_eq!(machine.members(1), BTreeSet::from([7]));
    assert!(agent.conditions.messages().is_empty());
}

#[tokio::test(start_paused = true)]
async fn task_in_network_of_host_or_none_has_no_address() {
    let machine = Machine::new();
    let modes = |desired| {
        [(1, TaskNetworkMode::Host), (2, TaskNetworkMode::None)]
            .map(|(number, mode)| TaskAssignment { desired, ..in_mode(number, mode) })
            .to_vec()
    };
    let agent = machine.agent_without_crash(assigned(modes(DesiredTaskState::Running)));
    agent.wait_ready(1).await;
    agent.wait_ready(2).await;
    assert!(machine.network.tasks().is_empty());
    let network = |number: u64| {
        let id = ContainerId::parse(&task_id(number).to_string()).unwrap();
        machine.runtime.last_spec(&id).unwrap().network
    };
    assert_eq!((network(1), network(2)), (NetworkMode::Host, NetworkMode::Isolated));
    let file = |number: u64, name: &str| {
        std::fs::read_to_string(machine.dir.path().join("tasks").join(task_id(number).to_string()).join(name))
    };
    assert_eq!(file(2, "resolv.conf").unwrap(), "");
    assert_eq!(file(2, "hosts").unwrap(), "127.0.0.1\tlocalhost\n127.0.0.1\tweb-2\n");
    assert!(!file(1, "resolv.conf").unwrap().contains("10.210.0.1"), "that of the host");
    agent.kill().await;
    let agent = machine.agent_without_crash(cached(modes(DesiredTaskState::Running)));
    agent.wait_ready(1).await;
    assert!(machine.network.tasks().is_empty(), "nor after a restart");
    agent.assign(modes(DesiredTaskState::Remove));
    agent.wait_removed(1).await;
    agent.wait_removed(2).await;
    assert_eq!(machine.leftovers().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn occupied_dns_port_is_a_condition_and_tasks_go_on() {
    let taken = DnsSockets::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = taken.udp.local_addr().unwrap();
    let is_taken = Arc::new(AtomicBool::new(true));
    // A port that was released may stay in use for a while: by a child that another test has just started, or by
    // whoever gets it next. So it is taken until the end, and another one is bound instead.
    let bind_dns = {
        let is_taken = Arc::clone(&is_taken);
        move |_: SocketAddr| match is_taken.load(Ordering::Relaxed) {
            true => DnsSockets::bind(address),
            false => DnsSockets::bind((Ipv4Addr::LOCALHOST, 0).into()),
        }
    };
    let machine = Machine { bind_dns: Arc::new(bind_dns), ..Machine::new() };
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    let messages = || agent.conditions.messages().join("; ");
    eventually("reported", async || !messages().is_empty()).await;
    let expected = format!("containers resolve no names: cannot answer DNS queries on {address}/udp");
    assert!(messages().starts_with(&expected), "{}", messages());
    is_taken.store(false, Ordering::Relaxed);
    eventually("repaired", async || messages().is_empty()).await;
    drop(taken);
}

#[tokio::test(start_paused = true)]
async fn node_network_follows_data_address_and_subnets() {
    let machine = Machine::new();
    let agent = machine.agent_without_crash(assigned(vec![task(1)]));
    agent.wait_ready(1).await;
    let settings = || machine.network.requested().unwrap().settings;
    let overlay = || settings().overlay().map(|overlay| (overlay.number(), overlay.address()));
    assert_eq!(overlay(), Some((1, DATA_ADDRESS)));
    let other = Ipv4Addr::new(198, 51, 100, 9);
    agent.data_address.set(other);
    eventually("moved", async || overlay() == Some((1, other))).await;
    // A task may be handled before the node network has its subnet.
    let further = "10.210.9.0/24".parse().unwrap();
    agent.desired_state.send_modify(|desired_state| {
        let task = TaskAssignment { address: Ipv4Addr::new(10, 210, 9, 1), ..task(2) };
        desired_state.tasks.insert(task.id, Arc::new(task));
    });
    let waiting = agent.wait_for_report(2, |report| report.reason.contains("not a usable address")).await;
    assert_eq!(waiting.state, TaskState::Preparing);
    agent.desired_state.send_modify(|desired_state| {
        desired_state.settings.as_mut().unwrap().subnets.push(further);
    });
    agent.wait_ready(2).await;
    assert_eq!(settings().blocks().last(), Some(&further));
    let plain = settings().mtu();
    agent.desired_state.send_modify(|desired_state| {
        desired_state.settings.as_mut().unwrap().data_plane = DataPlane::Wireguard;
    });
    eventually("encrypted", async || settings().wireguard() == Some(&fixtures::wireguard())).await;
    assert_eq!(settings().mtu(), plain - 60);
    agent.desired_state.send_modify(|desired_state| {
        desired_state.settings.as_mut().unwrap().data_plane = DataPlane::Routes;
    });
    let direct = |address| Some(DirectRoutes::new(1, address, "eth0").unwrap());
    eventually("without a tunnel", async || settings().direct_routes() == direct(other).as_ref()).await;
    assert_eq!((settings().mtu(), settings().overlay(), settings().wireguard()), (plain + 50, None, None));
    agent.data_address.set(DATA_ADDRESS);
    eventually("moved", async || settings().direct_routes() == direct(DATA_ADDRESS).as_ref()).await;
    assert_eq!(machine.network.tasks().len(), 2, "the first one is not disturbed");
}
