//! The certificate authority is replaced while clients write, tasks run, and a leader is lost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Channel;
use warren_client::JoinToken;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::nodes_client::NodesClient;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_proto::v1::users_client::UsersClient;
use warren_security::{
    CaDigest, CertificateAuthority, CertificateRequest, Credentials, Identity, JoinConnectError,
    NodeMembership, PrivateKey, ReloadableCertificate, Role, Roots, client_config, connect, connect_to_join,
};
use warren_test_history::workload::{AdminAccess, RegisterWorkload, RegisterWorkloadConfig};
use warren_test_history::{LinearizabilityVerdict, SearchLimit, check};
use warren_testkit::wait::eventually_async;
use warren_types::NodeRole;
use warren_worker::Worker;

use super::group::ManagerGroup;
use crate::agents::AgentMachine;
use crate::dial::until_accepted;
use crate::fixture::WAIT_DEADLINE;
use crate::joining::JoiningMachine;

const WRITES: u64 = 100;

impl ManagerGroup {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.hosts.iter().map(|host| host.address()).collect()
    }

    /// A machine that joins with its own key, and its agent.
    async fn worker(&self, name: &str) -> (AgentMachine, Worker) {
        let machine = AgentMachine::new().await;
        let store = machine.membership();
        let joining = JoiningMachine { key: store.ensure_key().unwrap(), ..JoiningMachine::new(name) };
        let token = self.token(NodeRole::Worker).await;
        let channel = self.any_running().channel(&self.roots, None).await;
        let joined = joining.join_over(channel, &token).await.unwrap();
        store.complete(&self.roots, joined.certificate_pem()).unwrap();
        let agent = machine.joined_agent(self.addresses()).await;
        (machine, agent)
    }

    async fn cluster(&self) -> ClusterClient<Channel> {
        let number = self.hosts.iter().position(|host| host.is_running()).expect("some manager runs");
        ClusterClient::new(self.channel(number).await)
    }

    async fn ca(&self) -> Result<v1::CaStatus, String> {
        let answer = self.cluster().await.get_ca(v1::GetCaRequest {}).await;
        Ok(answer.map_err(|status| status.to_string())?.into_inner())
    }

    async fn wait_for_ca(&self, what: &str, expected: impl Fn(&v1::CaStatus) -> bool) -> v1::CaStatus {
        eventually_async(WAIT_DEADLINE, what, || async {
            let status = self.ca().await?;
            if expected(&status) { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await
    }

    /// Waits until a node has this status.
    async fn node_is(&self, node: &str, expected: v1::NodeStatus) {
        eventually_async(WAIT_DEADLINE, "the status of a node", || async {
            let number = self.hosts.iter().position(|host| host.is_running()).expect("some manager runs");
            let request = v1::Reference { reference: node.to_owned() };
            let shown = NodesClient::new(self.channel(number).await).get(request).await;
            let shown = shown.map_err(|status| status.to_string())?.into_inner();
            if shown.status() == expected { Ok(()) } else { Err(format!("{shown:#?}")) }
        })
        .await;
    }
}

fn missing(progress: &Option<v1::CaProgress>) -> Vec<String> {
    progress.as_ref().map(|progress| progress.missing_names.clone()).unwrap_or_default()
}

fn trusted(machine: &AgentMachine) -> Vec<CaDigest> {
    match machine.membership().load().unwrap() {
        NodeMembership::Member { roots, .. } => roots.digests().to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Waits until `registers` has that many more writes.
async fn more_writes(registers: &RegisterWorkload, writes: u64) {
    let expected = registers.acknowledged() + writes;
    eventually_async(WAIT_DEADLINE, "more writes", || async {
        let found = registers.acknowledged();
        if found >= expected { Ok(()) } else { Err(format!("{found} of {expected}")) }
    })
    .await;
}

async fn processes(workers: &[(AgentMachine, Worker)]) -> Vec<BTreeMap<String, u32>> {
    let mut found = Vec::new();
    for (machine, _) in workers {
        found.push(machine.processes().await);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn authority_is_replaced_under_load() {
    let mut group = ManagerGroup::of_three().await;
    let stolen = CertificateAuthority::load(&group.hosts[2].data_dir().join("manager/ca.pem")).unwrap();
    let old_token = JoinToken::generate(stolen.digest()).unwrap();
    let (away, agent) = group.worker("away").await;
    group.node_is("away", v1::NodeStatus::Ready).await;
    agent.stop().await.unwrap();
    let removed = group.node("removed").await;
    let request = v1::RemoveNodeRequest { reference: "removed".to_owned(), force: true };
    NodesClient::new(group.channel(0).await).remove(request).await.unwrap();
    group.node_is("away", v1::NodeStatus::Down).await;
    let mut workers = Vec::new();
    for number in 1..=4 {
        workers.push(group.worker(&format!("w{number}")).await);
    }
    group.run(0, "web", 8).await;
    let runs = |task: &v1::Task| task.state() == v1::TaskState::Running;
    let before = group.shows_tasks(0, "tasks to run", 8, runs).await;
    let processes_before = processes(&workers).await;

    let plan = RegisterWorkloadConfig {
        managers: group.addresses(),
        registers: 3,
        clients: 4,
        pause: Duration::from_millis(5),
        netns: None,
        seed: 85,
    };
    let access = AdminAccess::new(&group.identity());
    let registers = tokio::task::block_in_place(|| RegisterWorkload::start(access, plan));
    more_writes(&registers, WRITES).await;
    let known = group.ca().await.unwrap();
    assert_eq!(
        (known.ca_digest.as_str(), known.phase()),
        (&*stolen.digest().to_string(), v1::CaPhase::Unspecified)
    );
    let request = v1::RotateCaRequest { ca_digest: known.ca_digest.clone() };
    let begun = group.cluster().await.rotate_ca(request.clone()).await.unwrap().into_inner();
    let again = group.cluster().await.rotate_ca(request).await.unwrap().into_inner();
    assert_eq!(again.ca_digest, begun.ca_digest, "a repeated request replaces it once");
    assert_ne!(begun.ca_digest, known.ca_digest);
    let leader = group.leader().await;
    group.hosts[leader].drop_manager().await;
    more_writes(&registers, WRITES).await;
    group.hosts[leader].start(false).await.unwrap();
    let done = group.wait_for_ca("the replacement", |status| status.phase() == v1::CaPhase::Complete).await;
    assert_eq!(done.ca_digest, begun.ca_digest);
    assert_eq!(missing(&done.nodes), ["away"], "{done:#?}");
    more_writes(&registers, WRITES).await;
    let history = tokio::task::block_in_place(|| registers.finish());
    let verdict = check(&history, SearchLimit::default());
    assert_eq!(verdict, LinearizabilityVerdict::Linearizable, "{verdict}");

    // No task was restarted, and everybody trusts the new authority alone.
    let after = group.shows_tasks(0, "tasks to run", 8, runs).await;
    let ids = |tasks: &[v1::Task]| {
        let mut ids: Vec<_> = tasks.iter().map(|task| (task.id.clone(), task.attempt)).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&after), ids(&before));
    assert_eq!(processes(&workers).await, processes_before);
    let new: CaDigest = begun.ca_digest.parse().unwrap();
    for (machine, _) in &workers {
        assert_eq!(trusted(machine), [new]);
    }
    eventually_async(WAIT_DEADLINE, "managers to trust the new authority alone", || async {
        let found: Vec<_> =
            group.hosts.iter().map(|host| host.manager().roots().digests().to_vec()).collect();
        if found.iter().all(|roots| *roots == [new]) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    thief_is_nobody(&group, &stolen, &old_token).await;

    // Who was away comes back with what it had, who was removed does not.
    assert_eq!(trusted(&away), [stolen.digest()]);
    let agent = away.joined_agent(group.addresses()).await;
    group.node_is("away", v1::NodeStatus::Ready).await;
    group.wait_for_ca("the node that was away", |status| missing(&status.nodes).is_empty()).await;
    assert_eq!(trusted(&away), [new]);
    until_accepted(group.hosts[1].address(), &group.roots, &removed, false).await;
    let anonymous = group.hosts[1].channel(&group.roots, None).await;
    let version = Some(v1::AssignmentVersion { incarnation: 1, index: 1 });
    let request = v1::CheckNodeRequest { node_id: removed.identity().id().to_owned(), version };
    let refused = SessionsClient::new(anonymous).check_node(request).await.unwrap_err();
    assert!(refused.message().contains("was removed"), "{refused:?}");

    renew_user(&mut group, new).await;
    let (late, late_agent) = group.worker("late").await;
    group.node_is("late", v1::NodeStatus::Ready).await;
    assert_eq!(trusted(&late), [new]);
    for agent in workers.into_iter().map(|(_, agent)| agent).chain([agent, late_agent]) {
        agent.stop().await.unwrap();
    }
}

/// Whoever has the key of the earlier authority is no manager, and its tokens lead nowhere.
async fn thief_is_nobody(group: &ManagerGroup, stolen: &CertificateAuthority, token: &JoinToken) {
    let key = PrivateKey::generate().unwrap();
    let id = key.node_id().unwrap().to_string();
    let identity = Identity::new(stolen.cluster(), Role::Manager, id).unwrap();
    let forged = stolen.issue_for(&identity, key, std::time::SystemTime::now()).unwrap();
    let only_new = group.hosts[0].manager().roots();
    only_new.check_issued(&forged).unwrap_err();
    for host in &group.hosts {
        only_new.check_issued(&host.credentials()).unwrap();
        let config = client_config(&only_new, Some(ReloadableCertificate::new(&forged))).unwrap();
        let stream = TcpStream::connect(host.address()).await.unwrap();
        let mut secure = connect(stream, config, WAIT_DEADLINE).await.unwrap();
        // A server that accepts it says something first.
        timeout(WAIT_DEADLINE, secure.read_u8()).await.expect("it is refused").unwrap_err();
        let stream = TcpStream::connect(host.address()).await.unwrap();
        let refused = connect_to_join(stream, token.authority(), WAIT_DEADLINE).await.unwrap_err();
        assert!(matches!(refused, JoinConnectError::AnotherCluster { .. }), "{refused}");
        assert!(refused.to_string().contains("make a new token"), "{refused}");
    }
}

/// A user with the certificate from before renews it, and trusts the new authority from then on.
async fn renew_user(group: &mut ManagerGroup, new: CaDigest) {
    let number = group.hosts.iter().position(|host| host.is_running()).expect("some manager runs");
    let key = group.admin.key().clone();
    let certificate_request = CertificateRequest::create(&key).unwrap();
    let status = group.cluster().await.get_ca(v1::GetCaRequest {}).await.unwrap();
    let header = status.metadata().get("warren-certificate-authority").unwrap().to_str().unwrap().to_owned();
    assert_eq!(header, new.to_string());
    let mut users = UsersClient::new(group.hosts[number].channel(&group.roots, None).await);
    let request = v1::RenewUserRequest { certificate_request, ttl_ms: 0, ca_digest: header };
    let v1::RenewUserResponse { certificate, authorities } = users.renew(request).await.unwrap().into_inner();
    let roots = Roots::parse(&authorities).unwrap();
    assert_eq!(roots.digests(), [new]);
    let renewed = Credentials::new(certificate, key).unwrap();
    roots.check_issued(&renewed).unwrap();
    (group.roots, group.admin) = (roots, renewed);
    group.wait_for_ca("all administrators", |status| missing(&status.users).is_empty()).await;
    let other = PrivateKey::generate().unwrap();
    let certificate_request = CertificateRequest::create(&other).unwrap();
    let request = v1::RenewUserRequest { certificate_request, ..Default::default() };
    let refused = users.renew(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
}
