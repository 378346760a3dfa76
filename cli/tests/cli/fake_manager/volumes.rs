//! Volumes. The node `stuck` does not answer; each other says that a volume has three MiB.

use tonic::{Code, Request, Response, Status};
use warren_proto::{Problem, v1};

use super::{FakeApi, FakeState, missing};

impl FakeState {
    fn volume(&self, reference: &str) -> Result<v1::Volume, Status> {
        let known = |volume: &&v1::Volume| volume.name == reference || volume.id == reference;
        let found = self.volumes.iter().find(known).cloned();
        found.map(|volume| self.with_users(volume)).ok_or_else(|| missing("volume", reference))
    }

    /// With the tasks that use it.
    fn with_users(&self, volume: v1::Volume) -> v1::Volume {
        let is = |mount: &v1::Mount| match &mount.source {
            Some(v1::mount::Source::Volume(one)) => one.name == volume.name,
            _ => false,
        };
        let uses = |task: &&v1::Task| task.spec.as_ref().unwrap().mounts.iter().any(is);
        let users = self.tasks.values().filter(uses);
        let users = users.map(|task| format!("{}.{}", task.service_name, task.slot)).collect();
        v1::Volume { users, ..volume }
    }
}

fn with_size(volume: v1::Volume) -> v1::Volume {
    let there = !volume.node_name.is_empty() && volume.node_name != "stuck";
    v1::Volume { size_bytes: there.then_some(3 << 20), ..volume }
}

#[tonic::async_trait]
impl v1::volumes_server::Volumes for FakeApi {
    async fn create(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::Volume>, Status> {
        let v1::CreateVolumeRequest { id, name, driver, options, labels, node, reuse } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        if reuse {
            state.volumes.retain(|volume| volume.name != name || volume.released_at.is_none());
        }
        if state.volume(&name).is_ok_and(|volume| volume.released_at.is_some()) {
            let message = format!("volume {name} was removed, and its data is still on n1");
            return Err(Problem::new(Code::FailedPrecondition, "VOLUME_RELEASED", message).into());
        }
        if state.volume(&name).is_ok() {
            let message = format!("there is a volume {name} already");
            return Err(Problem::new(Code::AlreadyExists, "VOLUME_EXISTS", message).into());
        }
        let found = state.nodes.values().find(|known| known.name == node).cloned();
        if found.is_none() && !node.is_empty() {
            return Err(missing("node", &node));
        }
        let (node_id, node_name) = found.map(|node| (node.id, node.name)).unwrap_or_default();
        let volume =
            v1::Volume { id, name, driver, options, labels, node_id, node_name, ..Default::default() };
        state.volumes.push(volume.clone());
        Ok(Response::new(volume))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Volume>, Status> {
        self.0.lock().unwrap().volume(&request.into_inner().reference).map(with_size).map(Response::new)
    }

    async fn list(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let v1::ListVolumesRequest { sizes, all, .. } = request.into_inner();
        let state = self.0.lock().unwrap();
        let volumes = state.volumes.iter().filter(|volume| all || volume.released_at.is_none());
        let volumes = volumes.cloned().map(|volume| state.with_users(volume));
        let volumes = volumes.map(|volume| if sizes { with_size(volume) } else { volume }).collect();
        Ok(Response::new(v1::ListVolumesResponse { volumes, next_page_token: String::new() }))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveVolumeRequest>,
    ) -> Result<Response<v1::Volume>, Status> {
        let v1::RemoveVolumeRequest { reference, purge, node: _ } = request.into_inner();
        let mut state = self.0.lock().unwrap();
        let volume = state.volume(&reference)?;
        if !volume.users.is_empty() {
            let message = format!("volume {} is used by {}", volume.name, volume.users.join(", "));
            return Err(Problem::new(Code::FailedPrecondition, "VOLUME_IN_USE", message).into());
        }
        if purge && volume.node_name == "stuck" {
            let message = format!("the data of volume {} is on stuck, which is DOWN", volume.name);
            return Err(Problem::new(Code::FailedPrecondition, "NODE_DOWN", message).into());
        }
        if !purge && !volume.node_name.is_empty() {
            let known = state.volumes.iter_mut().find(|known| known.id == volume.id).unwrap();
            (known.released_at, known.size_bytes) = (Some(1), Some(3 << 20));
            return Ok(Response::new(known.clone()));
        }
        state.volumes.retain(|known| known.id != volume.id);
        state.purged.extend(purge.then(|| volume.name.clone()));
        Ok(Response::new(volume))
    }
}
