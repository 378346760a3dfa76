//! Managers: `m1` leads, `m2` votes and has a node, `m3` does not answer. Nobody can go on without `m1`.

use tonic::{Code, Request, Response, Status};
use warren_proto::{Problem, v1};

use super::{FakeApi, ResponseStream, missing};

/// A backup that a manager wrote; its passphrase is `correct horse`.
pub const BACKUP: &[u8] = include_bytes!("../../../../manager/bootstrap/src/backup/golden/backup.1");

pub fn manager(member: u64) -> v1::Manager {
    let voter = v1::Suffrage::Voter;
    v1::Manager {
        id: format!("{member}{}", "0".repeat(24)),
        member_id: member,
        name: format!("m{member}"),
        address: format!("10.0.0.{member}:8080"),
        version: 1,
        created_at: 1000,
        desired_suffrage: voter.into(),
        suffrage: voter.into(),
        leader: member == 1,
        status: match member {
            3 => v1::ManagerStatus::Unreachable.into(),
            _ => v1::ManagerStatus::Ready.into(),
        },
        applied: 7,
        warren_version: "0.1.0".into(),
        node: if member == 2 { "m2".into() } else { String::new() },
        ..v1::Manager::default()
    }
}

fn refused(reason: &str, message: &str) -> Status {
    Problem::new(Code::FailedPrecondition, reason, message).into()
}

impl FakeApi {
    fn manager(&self, reference: &str) -> Result<v1::Manager, Status> {
        let state = self.0.lock().unwrap();
        let is_named =
            |it: &&v1::Manager| [&it.name, &it.address, &it.id].into_iter().any(|name| name == reference);
        let found = state.managers_listed.iter().find(is_named);
        found.cloned().ok_or_else(|| missing("manager", reference))
    }

    fn put_manager(&self, manager: &v1::Manager) {
        let mut state = self.0.lock().unwrap();
        let known = state.managers_listed.iter_mut().find(|known| known.member_id == manager.member_id);
        known.unwrap().clone_from(manager);
    }
}

#[tonic::async_trait]
impl v1::managers_server::Managers for FakeApi {
    type BackupStream = ResponseStream<v1::BackupChunk>;

    async fn join(
        &self,
        _: Request<v1::JoinManagerRequest>,
    ) -> Result<Response<v1::JoinManagerResponse>, Status> {
        Err(Status::unauthenticated("nobody joins here"))
    }

    async fn list(
        &self,
        _: Request<v1::ListManagersRequest>,
    ) -> Result<Response<v1::ListManagersResponse>, Status> {
        let managers = self.0.lock().unwrap().managers_listed.clone();
        let remaining_nodes = match managers.iter().any(|it| it.member_id == 2) {
            true => Vec::new(),
            false => vec!["m2".to_owned()],
        };
        Ok(Response::new(v1::ListManagersResponse { managers, term: 3, remaining_nodes }))
    }

    async fn update(
        &self,
        request: Request<v1::UpdateManagerRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let v1::UpdateManagerRequest { reference, desired_suffrage, address, .. } = request.into_inner();
        let mut manager = self.manager(&reference)?;
        if desired_suffrage == i32::from(v1::Suffrage::Learner) && manager.leader {
            return Err(refused(
                "WOULD_LOSE_QUORUM",
                "removing the vote of manager m1 would lose quorum: so it is",
            ));
        }
        if desired_suffrage != 0 {
            manager.desired_suffrage = desired_suffrage;
            manager.reason = "it takes a while".into();
        }
        if !address.is_empty() {
            manager.address = address;
        }
        self.put_manager(&manager);
        Ok(Response::new(manager))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveManagerRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let v1::RemoveManagerRequest { reference, force } = request.into_inner();
        let manager = self.manager(&reference)?;
        if manager.status() == v1::ManagerStatus::Ready && !force {
            return Err(refused("MANAGER_STILL_ACTIVE", "manager m2 answers; repeat this with --force"));
        }
        self.0.lock().unwrap().managers_listed.retain(|known| known.member_id != manager.member_id);
        Ok(Response::new(v1::Manager { removing: true, ..manager }))
    }

    async fn transfer_leadership(
        &self,
        request: Request<v1::TransferLeadershipRequest>,
    ) -> Result<Response<v1::Manager>, Status> {
        let to = request.into_inner().to;
        let mut manager = self.manager(if to.is_empty() { "m2" } else { &to })?;
        for known in &mut self.0.lock().unwrap().managers_listed {
            known.leader = false;
        }
        manager.leader = true;
        self.put_manager(&manager);
        Ok(Response::new(manager))
    }

    async fn backup(
        &self,
        request: Request<v1::BackupRequest>,
    ) -> Result<Response<Self::BackupStream>, Status> {
        // One that it did not write with this passphrase, unless that is the right one; or one that breaks off.
        let broken = request.into_inner().passphrase == "breaks off";
        let chunks = BACKUP.chunks(500).map(|chunk| Ok(v1::BackupChunk { data: chunk.to_vec().into() }));
        let chunks: Vec<_> = match broken {
            false => chunks.collect(),
            true => chunks.take(1).chain([Err(Status::internal("the backup broke off"))]).collect(),
        };
        Ok(Response::new(Box::pin(tokio_stream::iter(chunks))))
    }
}
