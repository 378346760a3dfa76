//! Several managers of one cluster, and every way to reach them.

use std::collections::BTreeMap;

use tonic::transport::Channel;
use tonic::{Request, Status};
use warren_client::JoinToken;
use warren_manager::Tuning;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::managers_client::ManagersClient;
use warren_proto::v1::services_client::ServicesClient;
use warren_proto::v1::tokens_client::TokensClient;
use warren_security::{Credentials, Roots};
use warren_testkit::wait::{Look, eventually_async};
use warren_types::{Id, NodeRole};

use super::host::Host;
use crate::world::{PATIENCE, new_id, spec};

pub struct Group {
    pub hosts: Vec<Host>,
    pub roots: Roots,
    /// Of an administrator.
    pub admin: Credentials,
}

/// A read that is content with what this manager has.
pub fn stale<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("warren-stale", "true".parse().unwrap());
    request
}

impl Group {
    /// One manager, `m1`.
    pub async fn founded(tuning: Tuning) -> Self {
        Self::founded_on(Host::new("m1", tuning)).await
    }

    /// One manager, on this host.
    pub async fn founded_on(mut first: Host) -> Self {
        first.start(true).await.unwrap();
        let (roots, admin) = (first.manager().roots(), first.manager().admin());
        Self { hosts: vec![first], roots, admin }
    }

    /// Three managers, `m1` to `m3`, that all vote.
    pub async fn of_three() -> Self {
        Self::of_three_tuned(Tuning::default()).await
    }

    pub async fn of_three_tuned(tuning: Tuning) -> Self {
        let mut group = Self::founded(tuning).await;
        group.add("m2").await;
        group.add("m3").await;
        group.all_vote().await;
        group
    }

    /// A further manager. It runs when this returns; it votes when it may.
    pub async fn add(&mut self, name: &str) {
        let Host { tuning, engine, hybrid, .. } = self.hosts[0];
        let mut host = Host::new(name, tuning);
        (host.engine, host.hybrid) = (engine, hybrid);
        self.hosts.push(host);
        self.join(self.hosts.len() - 1).await;
    }

    /// Makes a host a manager, and starts it.
    pub async fn join(&mut self, number: usize) {
        let through = self.hosts.iter().position(Host::is_up).expect("some manager runs");
        self.join_through(through, number).await;
    }

    /// The same, through this host's manager.
    pub async fn join_through(&mut self, through: usize, number: usize) {
        let token = self.token_of(&self.hosts[through], NodeRole::Manager).await;
        let through = self.hosts[through].address();
        self.hosts[number].join(through, &token).await.unwrap();
        self.hosts[number].start(false).await.unwrap();
    }

    /// A host whose manager runs.
    pub fn some_up(&self) -> &Host {
        self.hosts.iter().find(|host| host.is_up()).expect("some manager runs")
    }

    pub async fn token(&self, role: NodeRole) -> JoinToken {
        self.token_of(self.some_up(), role).await
    }

    async fn token_of(&self, host: &Host, role: NodeRole) -> JoinToken {
        let secret = JoinToken::generate(self.roots.digests()[0]).unwrap();
        let request = v1::CreateTokenRequest {
            id: Id(rand::random()).to_string(),
            role: v1::NodeRole::from(role).into(),
            hash: secret.hash().0.to_vec().into(),
            ttl_ms: 0,
            max_uses: None,
        };
        TokensClient::new(self.channel_of(host).await).create(request).await.unwrap();
        secret
    }

    async fn channel_of(&self, host: &Host) -> Channel {
        host.channel(&self.roots, Some(&self.admin)).await
    }

    /// As an administrator.
    pub async fn channel(&self, number: usize) -> Channel {
        self.channel_of(&self.hosts[number]).await
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
        let answer = self.managers(number).await.list(v1::ListManagersRequest {}).await?.into_inner();
        Ok(answer.managers.into_iter().map(|manager| (manager.name.clone(), manager)).collect())
    }

    /// Waits until the managers, as some that runs sees them, are as `wanted`.
    pub async fn shows(&self, what: &str, wanted: impl Fn(&BTreeMap<String, v1::Manager>) -> bool) {
        let number = self.hosts.iter().position(Host::is_up).expect("some manager runs");
        eventually_async(PATIENCE, what, || async {
            let listed = self.listed(number).await.map_err(|status| status.to_string())?;
            if wanted(&listed) { Ok(()) } else { Err(format!("{listed:#?}")) }
        })
        .await;
    }

    /// Waits until every host's manager votes.
    pub async fn all_vote(&self) {
        let wanted = self.hosts.len();
        self.shows("all to vote", |listed| {
            let voters = listed.values().filter(|manager| manager.suffrage() == v1::Suffrage::Voter);
            (voters.count(), listed.len()) == (wanted, wanted)
        })
        .await;
    }

    /// The host whose manager leads.
    pub async fn leader(&self) -> usize {
        eventually_async(PATIENCE, "a leader", || async { self.look_for_leader().await }).await
    }

    /// The same, if there is one now.
    pub async fn look_for_leader(&self) -> Look<usize> {
        let mut seen = String::new();
        for (number, host) in self.hosts.iter().enumerate().filter(|(_, host)| host.is_up()) {
            match self.info(number).await {
                Ok(info) if info.leader => return Ok(number),
                Ok(info) => seen += &format!("{}: {} leads; ", host.name, info.leader_name),
                Err(status) => seen += &format!("{}: {}; ", host.name, status.message()),
            }
        }
        Err(seen)
    }

    /// One that runs and does not lead.
    pub async fn follower(&self) -> usize {
        let leader = self.leader().await;
        let follows = |number: &usize| *number != leader && self.hosts[*number].is_up();
        (0..self.hosts.len()).find(follows).expect("somebody follows")
    }

    /// Makes a service that runs nothing, at this manager.
    pub async fn create(&self, number: usize, name: &str) -> Result<v1::Service, Status> {
        let request =
            v1::CreateServiceRequest { id: new_id().to_string(), spec: Some((&spec(name, 0)).into()) };
        Ok(self.services(number).await.create(request).await?.into_inner())
    }
}
