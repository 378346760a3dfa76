//! Managers renew their certificates while they run.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use warren_manager::ManagerTuning;
use warren_proto::v1;
use warren_security::{CertificateAuthority, Credentials, client_config, connect};
use warren_testkit::wait::eventually_async;

use super::group::ManagerGroup;
use super::host::ManagerHost;
use crate::fixture::WAIT_DEADLINE;

/// A short interval of checks.
const SOON: Duration = Duration::from_millis(50);

impl ManagerGroup {
    /// The certificate that a manager presents to new connections.
    async fn served_certificate(&self, number: usize) -> Vec<u8> {
        let stream = TcpStream::connect(self.hosts[number].address()).await.unwrap();
        let config = client_config(&self.roots, None).unwrap();
        let secure = connect(stream, Arc::clone(&config), WAIT_DEADLINE).await.unwrap();
        let (_, connection) = secure.get_ref();
        connection.peer_certificates().unwrap()[0].to_vec()
    }
}

/// Replaces a certificate by one of the same identity that expires soon.
fn backdate_certificate(host: &ManagerHost, file: &str) -> Credentials {
    let directory = host.data_dir().join("manager");
    let authority = CertificateAuthority::load(&directory.join("ca.pem")).unwrap();
    let young = Credentials::load(&directory.join(file)).unwrap();
    let validity = young.expires_at().duration_since(young.issued_at()).unwrap();
    let earlier = SystemTime::now() - validity.mul_f64(0.9);
    let old = authority.issue_for(young.identity(), young.key().clone(), earlier).unwrap();
    old.save(&directory.join(file)).unwrap();
    old
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
        let renewed = group.hosts[number].credentials();
        assert_eq!(renewed.identity(), old.identity());
        assert!(renewed.expires_at() > old.expires_at());
    }
    let manager = group.hosts[0].manager();
    let old = backdate_certificate(&group.hosts[0], "admin.pem");
    tokio::time::timeout(WAIT_DEADLINE, manager.admins().changed()).await.expect("it is renewed").unwrap();
    assert!(manager.admin().expires_at() > old.expires_at());
    // Existing connections continue, and so does the communication between managers.
    for (number, client) in services.iter_mut().enumerate() {
        client.list(v1::ListRequest::default()).await.unwrap();
        group.create(number, &format!("s{number}")).await.unwrap();
    }
}
