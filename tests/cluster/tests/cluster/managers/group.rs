//! Several managers of one cluster, and every way to connect to them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use warren_client::JoinToken;
use warren_manager::ManagerTuning;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::managers_client::ManagersClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::v1::tokens_client::TokensClient;
use warren_proto::{Problem, v1};
use warren_security::{Credentials, Roots};
use warren_testkit::wait::{WaitResult, eventually_async};
use warren_types::{Id, NodeRole};

use super::host::ManagerHost;
use crate::fixture::{WAIT_DEADLINE, spec};

pub struct ManagerGroup {
    pub hosts: Vec<ManagerHost>,
    pub roots: Roots,
    /// Of an administrator.
    pub admin: Credentials,
}

/// A read of this manager's own state.
pub fn stale<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("warren-allow-stale", "true".parse().unwrap());
    request
}

/// Repeats a call while its manager is unavailable, as clients do: on a loaded machine, leadership moves at any time.
pub async fn repeated<T, F>(call: impl Fn() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let started = Instant::now();
    loop {
        match call().await {
            Err(status) if status.code() == Code::Unavailable && started.elapsed() < WAIT_DEADLINE => {
                // Not a wait: between two attempts.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => return outcome,
        }
    }
}

/// The same for a removal; `None` if an earlier attempt without an answer has removed the object.
pub async fn repeated_removal<T, F>(call: impl Fn() -> F) -> Result<Option<T>, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let may_be_removed = AtomicBool::new(false);
    let attempt = || async {
        let removed = call().await;
        let problem = removed.as_ref().err().map(Problem::from);
        match problem {
            Some(problem) if problem.code == Code::NotFound && may_be_removed.load(Ordering::Relaxed) => {
                Ok(None)
            }
            Some(problem) => {
                // Other reasons say that nothing was done.
                if ["", "UNCONFIRMED"].contains(&problem.reason.as_str()) {
                    may_be_removed.store(true, Ordering::Relaxed);
                }
                removed.map(Some)
            }
            None => removed.map(Some),
        }
    };
    repeated(attempt).await
}

impl ManagerGroup {
    /// One manager, `m1`.
    pub async fn founded(tuning: ManagerTuning) -> Self {
        Self::founded_on(ManagerHost::new("m1", tuning)).await
    }

    /// One manager, on this host.
    pub async fn founded_on(mut first: ManagerHost) -> Self {
        first.start(true).await.unwrap();
        let (roots, admin) = (first.manager().roots(), first.manager().admin());
        Self { hosts: vec![first], roots, admin }
    }

    /// Three voters, `m1` to `m3`.
    pub async fn of_three() -> Self {
        Self::of_three_tuned(ManagerTuning::default()).await
    }

    pub async fn of_three_tuned(tuning: ManagerTuning) -> Self {
        let mut group = Self::founded(tuning).await;
        group.add("m2").await;
        group.add("m3").await;
        group.all_vote().await;
        group
    }

    /// Adds a manager. It runs when this returns; it is promoted later.
    pub async fn add(&mut self, name: &str) {
        let ManagerHost { tuning, engine, hybrid, .. } = self.hosts[0];
        let mut host = ManagerHost::new(name, tuning);
        (host.engine, host.hybrid) = (engine, hybrid);
        self.hosts.push(host);
        self.join(self.hosts.len() - 1).await;
    }

    /// Joins a host as a manager, and starts it.
    pub async fn join(&mut self, number: usize) {
        let through = self.hosts.iter().position(ManagerHost::is_running).expect("some manager runs");
        self.join_through(through, number).await;
    }

    /// The same, through this host's manager.
    pub async fn join_through(&mut self, through: usize, number: usize) {
        let token = self.token_of(&self.hosts[through], NodeRole::Manager).await;
        let through = self.hosts[through].address();
        self.hosts[number].join(through, &token).await.unwrap();
        self.hosts[number].start(false).await.unwrap();
    }

    /// Calls as the administrator of this host from now on, as soon as the cluster lists its key.
    pub async fn use_administrator_of(&mut self, number: usize) {
        self.admin = self.hosts[number].manager().admin();
        eventually_async(WAIT_DEADLINE, "the administrator to be listed", || async {
            self.info(number).await.map_err(|status| status.to_string())
        })
        .await;
    }

    /// A host with a running manager.
    pub fn any_running(&self) -> &ManagerHost {
        self.hosts.iter().find(|host| host.is_running()).expect("some manager runs")
    }

    /// Of all hosts.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.hosts.iter().map(ManagerHost::address).collect()
    }

    pub async fn token(&self, role: NodeRole) -> JoinToken {
        self.token_of(self.any_running(), role).await
    }

    async fn token_of(&self, host: &ManagerHost, role: NodeRole) -> JoinToken {
        let secret = JoinToken::generate(self.roots.digests()[0]).unwrap();
        let request = v1::CreateTokenRequest {
            id: Id(rand::random()).to_string(),
            role: v1::NodeRole::from(role).into(),
            hash: secret.hash().0.to_vec().into(),
            ttl_ms: 0,
            max_uses: None,
            labels: Default::default(),
        };
        let tokens = TokensClient::new(self.channel_of(host).await);
        repeated(|| async { tokens.clone().create(request.clone()).await }).await.unwrap();
        secret
    }

    async fn channel_of(&self, host: &ManagerHost) -> Channel {
        host.channel(&self.roots, Some(&self.admin)).await
    }

    /// As an administrator.
    pub async fn channel(&self, number: usize) -> Channel {
        self.channel_of(&self.hosts[number]).await
    }

    /// As an administrator, to a manager that runs.
    pub async fn any_channel(&self) -> Channel {
        self.channel_of(self.any_running()).await
    }

    /// The same.
    pub async fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.any_channel().await)
    }

    pub async fn services(&self, number: usize) -> ServicesClient<Channel> {
        ServicesClient::new(self.channel(number).await)
    }

    pub async fn managers(&self, number: usize) -> ManagersClient<Channel> {
        ManagersClient::new(self.channel(number).await)
    }

    pub async fn info(&self, number: usize) -> Result<v1::InfoResponse, Status> {
        let mut cluster = ClusterClient::new(self.channel(number).await);
        Ok(cluster.info(v1::InfoRequest {}).await?.into_inner())
    }

    /// The managers as this one sees them, by name.
    pub async fn listed(&self, number: usize) -> Result<BTreeMap<String, v1::Manager>, Status> {
        repeated(|| self.listed_once(number)).await
    }

    async fn listed_once(&self, number: usize) -> Result<BTreeMap<String, v1::Manager>, Status> {
        let answer = self.managers(number).await.list(v1::ListManagersRequest {}).await?.into_inner();
        Ok(answer.managers.into_iter().map(|manager| (manager.name.clone(), manager)).collect())
    }

    /// Waits until the managers, as listed by a running one, are as `expected`.
    pub async fn wait_for_managers(
        &self,
        what: &str,
        expected: impl Fn(&BTreeMap<String, v1::Manager>) -> bool,
    ) {
        let number = self.hosts.iter().position(ManagerHost::is_running).expect("some manager runs");
        eventually_async(WAIT_DEADLINE, what, || async {
            let listed = self.listed_once(number).await.map_err(|status| status.to_string())?;
            if expected(&listed) { Ok(()) } else { Err(format!("{listed:#?}")) }
        })
        .await;
    }

    /// Waits until every host's manager votes.
    pub async fn all_vote(&self) {
        let expected = self.hosts.len();
        self.wait_for_managers("all to vote", |listed| {
            let voters = listed.values().filter(|manager| manager.suffrage() == v1::Suffrage::Voter);
            (voters.count(), listed.len()) == (expected, expected)
        })
        .await;
    }

    /// The index of the leader's host.
    pub async fn leader(&self) -> usize {
        eventually_async(WAIT_DEADLINE, "a leader", || async { self.find_leader().await }).await
    }

    /// The same, if there is a leader now.
    pub async fn find_leader(&self) -> WaitResult<usize> {
        let mut seen = String::new();
        for (number, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.is_running()) {
            match self.info(number).await {
                Ok(info) if info.leader => return Ok(number),
                Ok(info) => seen += &format!("{}: {} leads; ", host.name, info.leader_name),
                Err(status) => seen += &format!("{}: {}; ", host.name, status.message()),
            }
        }
        Err(seen)
    }

    /// The indexes of the leader's host and of a running follower.
    pub async fn leader_and_follower(&self) -> (usize, usize) {
        let leader = self.leader().await;
        let follows = |number: &usize| *number != leader && self.hosts[*number].is_running();
        (leader, (0..self.hosts.len()).find(follows).expect("there is a follower"))
    }

    /// The index of a running follower.
    pub async fn follower(&self) -> usize {
        self.leader_and_follower().await.1
    }

    /// Transfers leadership until a host leads that is `expected`, and returns its index.
    pub async fn ensure_leader(&self, expected: impl Fn(usize) -> bool) -> usize {
        let running = |number: &usize| self.hosts[*number].is_running();
        let to =
            (0..self.hosts.len()).filter(running).find(|number| expected(*number)).expect("one of them runs");
        eventually_async(WAIT_DEADLINE, "the expected leader", || async {
            let leader = self.find_leader().await?;
            if expected(leader) {
                return Ok(leader);
            }
            let request = v1::TransferLeadershipRequest { to: self.hosts[to].name.clone() };
            let answer = self.managers(leader).await.transfer_leadership(request).await;
            Err(format!("{} led; {answer:?}", self.hosts[leader].name))
        })
        .await
    }

    /// Creates a service without tasks, at this manager. The ID follows from the name: a repeated call is the same
    /// request.
    pub async fn create(&self, number: usize, name: &str) -> Result<v1::Service, Status> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let request = v1::CreateServiceRequest {
            id: Id(hasher.finish().into()).to_string(),
            spec: Some((&spec(name, 0)).into()),
            ..Default::default()
        };
        let services = self.services(number).await;
        let call = || {
            let (mut services, request) = (services.clone(), request.clone());
            async move { services.create(request).await }
        };
        Ok(repeated(call).await?.into_inner())
    }
}
