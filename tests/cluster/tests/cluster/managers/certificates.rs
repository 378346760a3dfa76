//! Managers renew what they show while they show it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use warren_manager::Tuning;
use warren_proto::v1;
use warren_security::{CertificateAuthority, Credentials, client_config, connect};
use warren_testkit::wait::eventually_async;

use super::group::Group;
use super::host::Host;
use crate::world::PATIENCE;

/// Looked at often.
const SOON: Duration = Duration::from_millis(50);

impl Group {
    /// The certificate that a manager shows to whoever connects now.
    async fn shown_by(&self, number: usize) -> Vec<u8> {
        let stream = TcpStream::connect(self.hosts[number].address()).await.unwrap();
        let config = client_config(&self.roots, None).unwrap();
        let secure = connect(stream, Arc::clone(&config), PATIENCE).await.unwrap();
        let (_, connection) = secure.get_ref();
        connection.peer_certificates().unwrap()[0].to_vec()
    }
}

/// Puts into the place of a certificate one of the same holder that has little of its life left.
fn grow_old(host: &Host, file: &str) -> Credentials {
    let directory = host.data_dir().join("manager");
    let authority = CertificateAuthority::load(&directory.join("ca.pem")).unwrap();
    let young = Credentials::load(&directory.join(file)).unwrap();
    let life = young.expires_at().duration_since(young.issued_at()).unwrap();
    let old = authority.issue(young.identity(), SystemTime::now() - life.mul_f64(0.9)).unwrap();
    old.save(&directory.join(file)).unwrap();
    old
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_while_they_are_shown() {
    let group = Group::of_three_tuned(Tuning { certificates: SOON, ..Tuning::default() }).await;
    let mut services = [group.services(0).await, group.services(1).await, group.services(2).await];
    for number in 0..3 {
        let before = group.shown_by(number).await;
        let old = grow_old(&group.hosts[number], "manager.pem");
        eventually_async(PATIENCE, "another certificate to be shown", || async {
            if group.shown_by(number).await == before { Err("the same".to_owned()) } else { Ok(()) }
        })
        .await;
        let renewed = group.hosts[number].credentials();
        assert_eq!(renewed.identity(), old.identity());
        assert!(renewed.expires_at() > old.expires_at());
    }
    let manager = group.hosts[0].manager();
    let old = grow_old(&group.hosts[0], "admin.pem");
    tokio::time::timeout(PATIENCE, manager.admins().changed()).await.expect("it is renewed").unwrap();
    assert!(manager.admin().expires_at() > old.expires_at());
    // Connections from before go on, and so does what managers say to each other.
    for (number, door) in services.iter_mut().enumerate() {
        door.list(v1::ListRequest::default()).await.unwrap();
        group.create(number, &format!("s{number}")).await.unwrap();
    }
}
