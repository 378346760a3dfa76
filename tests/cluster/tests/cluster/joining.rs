//! How a machine becomes a node: tokens, and which requests are accepted with them.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::transport::Channel;
use tonic::{Code, Status};
use warren_client::{JoinToken, NewToken, TokenOptions};
use warren_proto::v1::membership_client::MembershipClient;
use warren_proto::v1::tokens_client::TokensClient;
use warren_proto::{Problem, v1};
use warren_security::{
    CertificateAuthority, CertificateRequest, Credentials, JoinConnectError, PrivateKey, Role,
};
use warren_testkit::wait::eventually_async;
use warren_types::{Id, NodeDescription, NodeRole, TokenId};

use crate::dial::join_handshake;
use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, description};
use crate::worker::ScriptedWorker;

/// A machine that is not a node yet.
pub struct JoiningMachine {
    pub key: PrivateKey,
    pub name: String,
    /// Of its join request.
    pub taints: Vec<String>,
    /// What its agent reports of itself.
    pub labels: BTreeMap<String, String>,
}

impl JoiningMachine {
    pub fn new(name: &str) -> Self {
        let (key, labels) = (PrivateKey::generate().unwrap(), BTreeMap::new());
        Self { key, name: name.to_owned(), taints: Vec::new(), labels }
    }

    pub fn request(&self) -> String {
        CertificateRequest::create(&self.key).unwrap()
    }

    fn join_request(&self, token: &JoinToken) -> v1::JoinRequest {
        v1::JoinRequest {
            token: token.reveal().to_string(),
            certificate_request: self.request(),
            name: self.name.clone(),
            description: Some((&NodeDescription { labels: self.labels.clone(), ..description() }).into()),
            taints: self.taints.clone(),
        }
    }

    /// Joins as agents do, over a connection without a certificate.
    pub async fn join(&self, world: &ManagerFixture, token: &JoinToken) -> Result<Credentials, Status> {
        let credentials = self.join_over(world.channel(CallerKind::Anonymous).await, token).await?;
        assert_eq!(credentials.identity().cluster(), world.manager().cluster().to_string());
        world.manager().roots().check_issued(&credentials).unwrap();
        Ok(credentials)
    }

    /// Joins over this connection.
    pub async fn join_over(&self, channel: Channel, token: &JoinToken) -> Result<Credentials, Status> {
        let answer = MembershipClient::new(channel).join(self.join_request(token)).await?.into_inner();
        let credentials = Credentials::new(answer.certificate, self.key.clone()).unwrap();
        let identity = credentials.identity();
        assert_eq!((identity.role(), identity.id()), (Role::Worker, answer.node_id.as_str()));
        assert_eq!(answer.node_id, self.key.node_id().unwrap().to_string());
        assert_eq!(answer.cluster_id, identity.cluster());
        Ok(credentials)
    }
}

async fn anonymous_client(world: &ManagerFixture) -> MembershipClient<Channel> {
    MembershipClient::new(world.channel(CallerKind::Anonymous).await)
}

pub async fn token(world: &ManagerFixture, ttl: Option<Duration>, max_uses: Option<u32>) -> NewToken {
    new_token(world, TokenOptions { role: NodeRole::Worker, ttl, max_uses, labels: BTreeMap::new() }).await
}

pub async fn new_token(world: &ManagerFixture, options: TokenOptions) -> NewToken {
    world.admin().await.tokens().create(TokenId(Id(rand::random())), &options).await.unwrap()
}

/// Another node of the cluster.
pub async fn joined(world: &ManagerFixture, name: &str) -> Credentials {
    let NewToken { secret, .. } = token(world, None, None).await;
    JoiningMachine::new(name).join(world, &secret).await.unwrap()
}

fn reason(refused: Result<Credentials, Status>) -> (Code, String) {
    let problem = Problem::from(&refused.unwrap_err());
    (problem.code, problem.reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_admits_a_node_once() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let NewToken { token: made, secret } = token(&world, Some(Duration::from_secs(3600)), Some(2)).await;
    let taints = vec!["gpu=a:NoSchedule".to_owned()];
    let machine = JoiningMachine { taints: taints.clone(), ..JoiningMachine::new("n2") };
    let credentials = machine.join(&world, &secret).await.unwrap();
    machine.join(&world, &secret).await.unwrap();
    let [shown] = &client.tokens().list().await.unwrap()[..] else { panic!("one token") };
    assert_eq!((&shown.id, shown.uses, shown.max_uses), (&made.id, 1, Some(2)), "the same machine again");
    let worker = ScriptedWorker::dial_as(&world, &credentials).await;
    assert_eq!(worker.welcome.settings.unwrap().node_id, credentials.identity().id());
    let node = client.nodes().get("n2").await.unwrap();
    assert_eq!((node.role(), node.id.as_str()), (v1::NodeRole::Worker, credentials.identity().id()));
    assert_eq!(node.taints, taints);
    assert_eq!(client.nodes().get("n1").await.unwrap().role(), v1::NodeRole::Manager);

    JoiningMachine::new("").join(&world, &secret).await.unwrap();
    let names: Vec<String> = client.nodes().list().await.unwrap().into_iter().map(|node| node.name).collect();
    assert!(names.len() == 3 && names.iter().any(|name| name.starts_with("node-")), "{names:?}");
    let used_up = JoiningMachine::new("n4").join(&world, &secret).await;
    assert_eq!(reason(used_up), (Code::PermissionDenied, "TOKEN_EXHAUSTED".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_token_is_refused() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let denied = |reason: &str| (Code::PermissionDenied, reason.to_owned());
    let short = token(&world, Some(Duration::from_millis(500)), None).await;
    let end = UNIX_EPOCH + Duration::from_millis(short.token.expires_at.unwrap());
    eventually_async(WAIT_DEADLINE, "the token to expire", || async {
        if SystemTime::now() > end { Ok(()) } else { Err("it holds".to_owned()) }
    })
    .await;
    let writes = client.cluster().info().await.unwrap().log_writes;
    assert_eq!(reason(JoiningMachine::new("n2").join(&world, &short.secret).await), denied("TOKEN_EXPIRED"));
    let invented = JoinToken::generate(short.secret.authority()).unwrap();
    assert_eq!(reason(JoiningMachine::new("n2").join(&world, &invented).await), denied("TOKEN_NOT_FOUND"));
    assert_eq!(client.cluster().info().await.unwrap().log_writes, writes, "rejected machines write nothing");
    let removed = token(&world, None, None).await;
    client.tokens().remove(&removed.token.id).await.unwrap();
    assert!(client.tokens().remove(&removed.token.id).await.unwrap_err().is_not_found());
    assert_eq!(
        reason(JoiningMachine::new("n2").join(&world, &removed.secret).await),
        denied("TOKEN_NOT_FOUND")
    );
    let other = CertificateAuthority::create("0000000000000000000000001", SystemTime::now()).unwrap();
    let foreign = JoinToken::generate(other.digest()).unwrap();
    assert_eq!(reason(JoiningMachine::new("n2").join(&world, &foreign).await), denied("CLUSTER_MISMATCH"));
    // An agent does not even send its request then.
    let refused = join_handshake(world.manager().address(), foreign.authority()).await.unwrap_err();
    assert!(matches!(refused, JoinConnectError::AnotherCluster { .. }), "{refused}");
    let good = token(&world, None, None).await.secret;
    join_handshake(world.manager().address(), good.authority()).await.unwrap();
    assert_eq!(
        reason(JoiningMachine::new("n1").join(&world, &good).await),
        (Code::AlreadyExists, "NODE_EXISTS".into()),
        "that name is taken"
    );
    assert_eq!(client.nodes().list().await.unwrap().len(), 1);
    assert_eq!(client.tokens().list().await.unwrap().iter().map(|token| token.uses).sum::<u32>(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn join_request_is_validated_by_field() {
    let world = ManagerFixture::new().await;
    let token = token(&world, None, None).await.secret;
    let good = JoiningMachine::new("n2").join_request(&token);
    let mut foreign = anonymous_client(&world).await;
    let long = "-".repeat(9 << 10);
    let wrong = v1::JoinRequest {
        token: "WRN-1-12".into(),
        certificate_request: long,
        name: "n 2".into(),
        description: None,
        taints: ["a=1:NoExecute", "a:Never"].map(str::to_owned).into(),
    };
    let refused = Problem::from(&foreign.join(wrong).await.unwrap_err());
    let paths: Vec<&str> = refused.violations.0.iter().map(|violation| violation.path.as_str()).collect();
    assert_eq!(paths, ["token", "certificateRequest", "name", "taints[1]"]);
    let nothing = v1::JoinRequest { description: None, ..good.clone() };
    let refused = Problem::from(&foreign.join(nothing).await.unwrap_err());
    assert_eq!(refused.violations.0[0].path, "description");
    assert!(!refused.to_string().contains(&*token.reveal()));
    // More than the limit of a connection without a certificate.
    let mut flood = good.clone();
    flood.name = "n".repeat(1 << 20);
    assert!(foreign.join(flood).await.is_err());
    let mut member = MembershipClient::new(world.channel(CallerKind::Certified(Role::Worker)).await);
    let refused = member.join(good).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("without a certificate"), "{}", refused.message());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_made_once_and_listed_in_pages() {
    let world = ManagerFixture::new().await;
    let mut raw = TokensClient::new(world.channel(CallerKind::Local).await);
    let request = |number: u8| v1::CreateTokenRequest {
        id: Id(u128::from(number)).to_string(),
        role: v1::NodeRole::Worker.into(),
        hash: vec![number; 32].into(),
        ttl_ms: 60_000,
        max_uses: None,
        labels: BTreeMap::new(),
    };
    for number in 1..=5 {
        let made = raw.create(request(number)).await.unwrap().into_inner();
        assert_eq!(raw.create(request(number)).await.unwrap().into_inner(), made, "a retry");
    }
    let other = raw.create(v1::CreateTokenRequest { max_uses: Some(1), ..request(1) }).await;
    assert_eq!(other.unwrap_err().code(), Code::AlreadyExists);
    let neither = v1::CreateTokenRequest { role: v1::NodeRole::Unspecified.into(), ..request(9) };
    let refused = Problem::from(&raw.create(neither).await.unwrap_err());
    assert_eq!(refused.violations.0[0].path, "role");
    let (mut page_token, mut found) = (String::new(), Vec::new());
    loop {
        let page = raw.list(v1::ListRequest { page_size: 2, page_token }).await.unwrap().into_inner();
        assert!(page.tokens.len() <= 2);
        found.extend(page.tokens.into_iter().map(|token| token.id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, (1..=5).map(|n| Id(n).to_string()).collect::<Vec<_>>());
}
