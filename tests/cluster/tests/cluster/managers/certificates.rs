//! Machines renew their certificates: in time, and when they have expired.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use warren_manager::ManagerTuning;
use warren_proto::v1::membership_client::MembershipClient;
use warren_proto::{Problem, v1};
use warren_security::{
    CertificateAuthority, CertificateRequest, ConnectError, Credentials, client_config, connect,
};
use warren_testkit::wait::eventually_async;
use warren_worker::Worker;

use super::group::{ManagerGroup, repeated};
use super::host::ManagerHost;
use super::workers::{attempts, processes, runs};
use crate::agents::AgentMachine;
use crate::dial::{accepts, handshake, until_accepted};
use crate::fixture::WAIT_DEADLINE;

/// A short interval of checks.
const SOON: Duration = Duration::from_millis(50);
/// Longer than any certificate of a machine is valid by default.
pub const LONG: Duration = Duration::from_secs(100 * 24 * 60 * 60);

impl ManagerGroup {
    /// The agents of machines that have joined before, once they are ready and have valid certificates.
    pub async fn returned_agents(&self, machines: Vec<AgentMachine>) -> Vec<(AgentMachine, Worker)> {
        let mut workers = Vec::new();
        for machine in machines {
            let agent = machine.joined_agent(self.addresses()).await;
            workers.push((machine, agent));
        }
        for (machine, agent) in &workers {
            // A certificate is in use before it is stored.
            eventually_async(WAIT_DEADLINE, "a node to be ready with a stored certificate", || async {
                agent.ready().map_err(|missing| missing.to_string())?;
                let stored = machine.member().0.expires_at();
                if stored > SystemTime::now() { Ok(()) } else { Err("the stored one has expired".to_owned()) }
            })
            .await;
        }
        workers
    }

    /// The certificate that a manager presents to new connections.
    async fn served_certificate(&self, number: usize) -> Vec<u8> {
        let config = client_config(&self.roots, None).unwrap();
        let attempt = |stream| connect(stream, Arc::clone(&config), WAIT_DEADLINE);
        let secure = handshake(self.hosts[number].address(), attempt).await.unwrap();
        let (_, connection) = secure.get_ref();
        connection.peer_certificates().unwrap()[0].to_vec()
    }
}

/// The authority in the directory of a manager.
pub fn authority(host: &ManagerHost) -> CertificateAuthority {
    CertificateAuthority::load(&host.data_dir().join("manager/ca.pem")).unwrap()
}

/// A certificate for the same identity and key that was issued that long ago.
fn issued_ago(authority: &CertificateAuthority, young: &Credentials, age: Duration) -> Credentials {
    authority.issue_for(young.identity(), young.key().clone(), SystemTime::now() - age).unwrap()
}

/// Replaces a certificate of a manager by one that was issued that long ago.
fn age_certificate(host: &ManagerHost, file: &str, age: impl Fn(&Credentials) -> Duration) -> Credentials {
    let path = host.data_dir().join("manager").join(file);
    let young = Credentials::load(&path).unwrap();
    let old = issued_ago(&authority(host), &young, age(&young));
    old.save(&path).unwrap();
    old
}

/// The same with the certificate of a node.
pub fn age_membership(
    machine: &AgentMachine,
    authority: &CertificateAuthority,
    age: Duration,
) -> Credentials {
    let (store, young) = (machine.membership(), machine.member().0);
    store.complete(&authority.roots(), issued_ago(authority, &young, age).certificate_pem()).unwrap()
}

/// Replaces a certificate of a manager by one that expires soon.
fn backdate_certificate(host: &ManagerHost, file: &str) -> Credentials {
    let validity = |young: &Credentials| young.expires_at().duration_since(young.issued_at()).unwrap();
    age_certificate(host, file, |young| validity(young).mul_f64(0.9))
}

impl ManagerGroup {
    /// The reason for which a machine gets no certificate for the key of its node.
    pub async fn refused_renewal(&self, number: usize, machine: &AgentMachine) -> String {
        let certificate_request = CertificateRequest::create(machine.member().0.key()).unwrap();
        let anonymous = MembershipClient::new(self.hosts[number].channel(&self.roots, None).await);
        let request = v1::RenewRequest { certificate_request };
        let refused = repeated(|| async { anonymous.clone().renew(request.clone()).await }).await;
        Problem::from(&refused.unwrap_err()).reason
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_while_they_are_shown() {
    let group = ManagerGroup::of_three_tuned(ManagerTuning {
        certificate_check_interval: SOON,
        ..ManagerTuning::default()
    })
    .await;
    let mut services = [group.services(0).await, group.services(1).await, group.services(2).await];
    for number in 0..3 {
        let before = group.served_certificate(number).await;
        let old = backdate_certificate(&group.hosts[number], "manager.pem");
        eventually_async(WAIT_DEADLINE, "another certificate to be shown", || async {
            if group.served_certificate(number).await == before { Err("the same".to_owned()) } else { Ok(()) }
        })
        .await;
        // It is in use before it is stored.
        eventually_async(WAIT_DEADLINE, "the certificate to be stored", || async {
            let stored = group.hosts[number].credentials().expires_at();
            if stored > old.expires_at() { Ok(()) } else { Err("the old one".to_owned()) }
        })
        .await;
        assert_eq!(group.hosts[number].credentials().identity(), old.identity());
    }
    let mut shown = group.hosts[0].manager().admins();
    let old = backdate_certificate(&group.hosts[0], "admin.pem");
    tokio::time::timeout(WAIT_DEADLINE, shown.changed()).await.expect("it is renewed").unwrap();
    assert!(shown.borrow().expires_at() > old.expires_at());
    // Existing connections continue, and so does the communication between managers.
    for (number, client) in services.iter_mut().enumerate() {
        client.list(v1::ListServicesRequest::default()).await.unwrap();
        group.create(number, &format!("s{number}")).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cluster_that_was_off_for_100_days_returns() {
    let mut group = ManagerGroup::of_three().await;
    let mut workers = Vec::new();
    for name in ["w1", "w2", "removed"] {
        workers.push(group.worker(name, &[]).await);
    }
    group.run(0, "web", 6).await;
    group.shows_tasks(0, "tasks to run", 6, runs).await;
    // One of the nodes is off already when it is removed.
    let (removed, agent) = workers.pop().unwrap();
    agent.stop().await.unwrap();
    assert!(!removed.processes().await.is_empty(), "the tasks are spread over the nodes");
    group.remove_node("removed").await;
    let before = group.shows_tasks(0, "its tasks to run elsewhere", 6, runs).await;
    let processes_before = processes(&workers).await;

    let mut machines = Vec::new();
    for (machine, agent) in workers {
        agent.stop().await.unwrap();
        machines.push(machine);
    }
    for host in &mut group.hosts {
        host.drop_manager().await;
    }
    let authority = authority(&group.hosts[0]);
    let mut expired = Vec::new();
    for host in &group.hosts {
        expired.extend(["manager.pem", "admin.pem"].map(|file| age_certificate(host, file, |_| LONG)));
    }
    let nodes = machines.iter().chain([&removed]);
    expired.extend(nodes.map(|machine| age_membership(machine, &authority, LONG)));

    for host in &mut group.hosts {
        host.start(false).await.unwrap();
    }
    let workers = group.returned_agents(machines).await;
    let after = group.shows_tasks(0, "tasks to run", 6, runs).await;
    assert_eq!(attempts(&after), attempts(&before));
    assert_eq!(processes(&workers).await, processes_before);

    // The certificates themselves are refused, whatever for.
    for host in &group.hosts {
        until_accepted(host.address(), &group.roots, &host.credentials(), true).await;
        for credentials in &expired {
            let refused = accepts(host.address(), &group.roots, credentials).await.unwrap_err();
            assert!(matches!(refused, ConnectError::Expired), "{}: {refused}", credentials.identity());
        }
    }

    // Who was removed learns it, and gets no certificate.
    let agent = removed.joined_agent(group.addresses()).await;
    eventually_async(WAIT_DEADLINE, "the removed node to stop its tasks", || async {
        let left = removed.processes().await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    agent.stop().await.unwrap();
    assert!(removed.member().0.expires_at() < SystemTime::now());
    for number in 0..3 {
        assert_eq!(group.refused_renewal(number, &removed).await, "NODE_REMOVED");
    }
    for (_, agent) in workers {
        agent.stop().await.unwrap();
    }
}
