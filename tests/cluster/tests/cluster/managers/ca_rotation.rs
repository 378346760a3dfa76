//! The certificate authority is replaced while clients write, tasks run, and a leader is lost.

use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use tonic::Status;
use warren_client::JoinToken;
use warren_proto::v1;
use warren_proto::v1::users_client::UsersClient;
use warren_security::{
    CaDigest, CertificateAuthority, CertificateRequest, Credentials, Identity, JoinConnectError, PrivateKey,
    ReloadableCertificate, Role, Roots, client_config, connect,
};
use warren_testkit::wait::eventually_async;

use super::group::{ManagerGroup, repeated};
use super::rehearsal::Rehearsal;
use crate::agents::AgentMachine;
use crate::dial::{handshake, join_handshake};
use crate::fixture::WAIT_DEADLINE;

impl ManagerGroup {
    async fn ca(&self) -> Result<v1::CaStatus, Status> {
        Ok(self.cluster().await.get_ca(v1::GetCaRequest {}).await?.into_inner())
    }

    async fn wait_for_ca(&self, what: &str, expected: impl Fn(&v1::CaStatus) -> bool) -> v1::CaStatus {
        eventually_async(WAIT_DEADLINE, what, || async {
            let status = self.ca().await.map_err(|status| status.to_string())?;
            if expected(&status) { Ok(status) } else { Err(format!("{status:#?}")) }
        })
        .await
    }
}

fn missing(progress: &Option<v1::CaProgress>) -> Vec<String> {
    progress.as_ref().map(|progress| progress.missing_names.clone()).unwrap_or_default()
}

fn trusted(machine: &AgentMachine) -> Vec<CaDigest> {
    machine.member().1.digests().to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn authority_is_replaced_under_load() {
    let mut world = Rehearsal::start().await;
    let stolen = CertificateAuthority::load(&world.group.hosts[2].data_dir().join("manager/ca.pem")).unwrap();
    let old_token = JoinToken::generate(stolen.digest()).unwrap();
    world.group.node_is("away", v1::NodeStatus::Down).await;
    let known = repeated(|| world.group.ca()).await.unwrap();
    assert_eq!(
        (known.ca_digest.as_str(), known.phase()),
        (&*stolen.digest().to_string(), v1::CaPhase::Unspecified)
    );
    let request = v1::RotateCaRequest { ca_digest: known.ca_digest.clone() };
    let cluster = world.group.cluster().await;
    let rotate = || async { cluster.clone().rotate_ca(request.clone()).await };
    let begun = repeated(rotate).await.unwrap().into_inner();
    let again = repeated(rotate).await.unwrap().into_inner();
    assert_eq!(again.ca_digest, begun.ca_digest, "a repeated request replaces it once");
    assert_ne!(begun.ca_digest, known.ca_digest);
    let leader = world.group.leader().await;
    world.group.hosts[leader].drop_manager().await;
    world.more_writes().await;
    world.group.hosts[leader].start(false).await.unwrap();
    let done =
        world.group.wait_for_ca("the replacement", |status| status.phase() == v1::CaPhase::Complete).await;
    assert_eq!(done.ca_digest, begun.ca_digest);
    assert_eq!(missing(&done.nodes), ["away"], "{done:#?}");
    world.finish().await;

    let new: CaDigest = begun.ca_digest.parse().unwrap();
    for (machine, _) in &world.workers {
        assert_eq!(trusted(machine), [new]);
    }
    eventually_async(WAIT_DEADLINE, "managers to trust the new authority alone", || async {
        let found: Vec<_> =
            world.group.hosts.iter().map(|host| host.manager().roots().digests().to_vec()).collect();
        if found.iter().all(|roots| *roots == [new]) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    thief_is_nobody(&world.group, &stolen, &old_token).await;

    assert_eq!(trusted(&world.away), [stolen.digest()]);
    let agent = world.bring_back().await;
    world.group.wait_for_ca("the node that was away", |status| missing(&status.nodes).is_empty()).await;
    assert_eq!(trusted(&world.away), [new]);

    renew_user(&mut world.group, new).await;
    let (late, late_agent) = world.group.worker("late", &[]).await;
    assert_eq!(trusted(&late), [new]);
    world.stop([agent, late_agent]).await;
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
        let attempt = |stream| connect(stream, Arc::clone(&config), WAIT_DEADLINE);
        let mut secure = handshake(host.address(), attempt).await.unwrap();
        // A server that accepts it says something first.
        timeout(WAIT_DEADLINE, secure.read_u8()).await.expect("it is refused").unwrap_err();
        let refused = join_handshake(host.address(), token.authority()).await.unwrap_err();
        assert!(matches!(refused, JoinConnectError::AnotherCluster { .. }), "{refused}");
        assert!(refused.to_string().contains("make a new token"), "{refused}");
    }
}

/// A user with the certificate from before renews it, and trusts the new authority from then on.
async fn renew_user(group: &mut ManagerGroup, new: CaDigest) {
    let key = group.admin.key().clone();
    let certificate_request = CertificateRequest::create(&key).unwrap();
    let cluster = group.cluster().await;
    let shown = repeated(|| async { cluster.clone().get_ca(v1::GetCaRequest {}).await }).await;
    let status = shown.unwrap();
    let header = status.metadata().get("warren-certificate-authority").unwrap().to_str().unwrap().to_owned();
    assert_eq!(header, new.to_string());
    let users = UsersClient::new(group.any_running().channel(&group.roots, None).await);
    let renew = async |request: v1::RenewUserRequest| {
        repeated(|| async { users.clone().renew(request.clone()).await }).await
    };
    let request = v1::RenewUserRequest { certificate_request, ttl_ms: 0, ca_digest: header };
    let v1::RenewUserResponse { certificate, authorities } = renew(request).await.unwrap().into_inner();
    let roots = Roots::parse(&authorities).unwrap();
    assert_eq!(roots.digests(), [new]);
    let renewed = Credentials::new(certificate, key).unwrap();
    roots.check_issued(&renewed).unwrap();
    (group.roots, group.admin) = (roots, renewed);
    group.wait_for_ca("all administrators", |status| missing(&status.users).is_empty()).await;
    let other = PrivateKey::generate().unwrap();
    let certificate_request = CertificateRequest::create(&other).unwrap();
    let request = v1::RenewUserRequest { certificate_request, ..Default::default() };
    let refused = renew(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);
}
