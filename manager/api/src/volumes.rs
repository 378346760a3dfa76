//! Volumes: create, get, list, remove, with or without their data.
//!
//! Disk usage is queried from the volume's node over a stream that it opens; the list of volumes is in the
//! state.

mod query;

use std::collections::BTreeMap;
use std::sync::Arc;

use tonic::{Code, Request, Response, Status};
use warren_core::state::{ObjectKind, VolumeData};
use warren_core::{Command, State};
use warren_proto::convert::parse_field;
use warren_proto::status::Problem;
use warren_proto::v1::{self, volumes_server};
use warren_store::problem::status_of;
use warren_types::spec::validate_labels;
use warren_types::{Node, NodeId, Violation, Violations, Volume, VolumeDriver, VolumeId, VolumeName};

use self::query::VolumeSizes;
use super::Api;
use super::audited_call::AuditedCall;
use super::paging::Page;

/// A parsed create request without the node.
#[derive(Debug)]
pub(super) struct VolumeRequest {
    pub(super) id: VolumeId,
    pub(super) name: VolumeName,
    pub(super) driver: VolumeDriver,
    pub(super) options: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) reuse: bool,
}

impl VolumeRequest {
    pub(super) fn parse(request: &v1::CreateVolumeRequest) -> Result<Self, Violations> {
        let v1::CreateVolumeRequest { id, name, driver, options, labels, node: _, reuse } = request.clone();
        let mut wrong = Violations::default();
        let id = parse_field("id", &id).map_err(|inner| wrong.0.extend(inner.0)).ok();
        let name = parse_field("name", &name).map_err(|inner| wrong.0.extend(inner.0)).ok();
        let driver = match driver.as_str() {
            "" => Some(VolumeDriver::default()),
            given => parse_field("driver", given).map_err(|inner| wrong.0.extend(inner.0)).ok(),
        };
        if let Some(driver) = driver {
            wrong.0.extend(Volume::validate(driver, &options).0);
        }
        validate_labels(&labels, &mut wrong);
        let parsed = || Some(Self { id: id?, name: name?, driver: driver?, options, labels, reuse });
        let parsed = wrong.into_result(parsed())?;
        Ok(parsed.expect("missing fields are violations"))
    }
}

/// A volume with its users, and with its size if known.
fn show(state: &State, volume: &Volume, sizes: &VolumeSizes) -> v1::Volume {
    let node = volume.node.and_then(|id| state.node(&id));
    let measured = volume.node.and_then(|node| *sizes.get(&(node, volume.name.clone()))?);
    let reported = volume.released.and_then(|released| released.size).map(|size| size.0);
    v1::Volume {
        id: volume.id.to_string(),
        name: volume.name.to_string(),
        version: volume.version,
        created_at: volume.created_at.0,
        labels: volume.labels.clone(),
        driver: volume.driver.as_str().to_owned(),
        options: volume.options.clone(),
        node_id: volume.node.map(|id| id.to_string()).unwrap_or_default(),
        node_name: node.map(|node| node.name.to_string()).unwrap_or_default(),
        removing: volume.removing,
        users: state.volume_users(&volume.name),
        size_bytes: measured.or(reported),
        released_at: volume.released.map(|released| released.at.0),
        unrecorded: false,
    }
}

/// Data on nodes that no volume has, ordered by name and node.
fn unrecorded(state: &State, held: &VolumeSizes) -> Vec<v1::Volume> {
    let is_recorded = |node: NodeId, name: &VolumeName| {
        state.volume_by_name(name).is_some_and(|volume| volume.node == Some(node))
    };
    let found = held.iter().filter(|((node, name), _)| !is_recorded(*node, name));
    let mut found: Vec<_> =
        found.filter_map(|((node, name), size)| Some(show_data(state.node(node)?, name, *size))).collect();
    found.sort_by(|one, other| (&one.name, &one.node_name).cmp(&(&other.name, &other.node_name)));
    found
}

/// Data on a node that no volume has.
fn show_data(node: &Node, name: &VolumeName, size_bytes: Option<u64>) -> v1::Volume {
    v1::Volume {
        name: name.to_string(),
        driver: VolumeDriver::Local.as_str().to_owned(),
        node_id: node.id.to_string(),
        node_name: node.name.to_string(),
        size_bytes,
        unrecorded: true,
        ..v1::Volume::default()
    }
}

/// The error for a volume that is marked for removal but still has data.
fn data_not_deleted(volume: &Volume, node: &Node, why: &str) -> Status {
    let Volume { name, .. } = volume;
    let message = format!(
        "deleting the data of volume {name} on node {} failed: {why}; the volume is not in use any more; \
         retry with `warren volume rm --purge {name}`",
        node.name
    );
    Problem::new(Code::FailedPrecondition, "VOLUME_DATA_NOT_DELETED", message).into()
}

impl Api {
    /// Deletes the data of a volume that is marked for removal, then its record. Idempotent.
    async fn delete_data(&self, caller: &AuditedCall, id: VolumeId) -> Result<(), Status> {
        let published = self.store.read();
        // A volume that never had data is removed already.
        let Some(volume) = published.state.volume(&id).filter(|volume| volume.removing) else {
            return Ok(());
        };
        if let Some(node) = volume.node.and_then(|node| published.state.node(&node)) {
            let purged = self.delete_volume_data(node.id, &volume.name).await;
            purged.map_err(|why| data_not_deleted(volume, node, &why))?;
            let Volume { name, .. } = &**volume;
            tracing::info!(%caller, volume = %id, %name, node = %node.name, "volume data deleted");
        }
        self.propose(Command::DeleteVolume { id, at: self.clock.now() }).await.map_err(status_of)?;
        Ok(())
    }

    /// Deletes data on a node that no volume has. Its worker rejects that while a task uses it.
    async fn purge_unrecorded(
        &self,
        caller: &AuditedCall,
        node: &Node,
        name: &VolumeName,
    ) -> Result<v1::Volume, Status> {
        self.delete_volume_data(node.id, name).await.map_err(|why| {
            let message = format!("deleting the data of volume {name} on node {} failed: {why}", node.name);
            Status::from(Problem::new(Code::FailedPrecondition, "VOLUME_DATA_NOT_DELETED", message))
        })?;
        tracing::info!(%caller, %name, node = %node.name, "unrecorded volume data deleted");
        Ok(show_data(node, name, None))
    }
}

#[tonic::async_trait]
impl volumes_server::Volumes for Api {
    async fn create(
        &self,
        request: Request<v1::CreateVolumeRequest>,
    ) -> Result<Response<v1::Volume>, Status> {
        let caller = AuditedCall::of(&request);
        let VolumeRequest { id, name, driver, options, labels, reuse } =
            VolumeRequest::parse(request.get_ref()).map_err(status_of)?;
        caller.named(ObjectKind::Volume, name.as_str());
        let node = match request.get_ref().node.as_str() {
            "" => None,
            given => Some(self.read_latest().await?.state.find_node(given).map_err(status_of)?.id),
        };
        let at = self.clock.now();
        let command =
            Command::CreateVolume { id, name: name.clone(), driver, options, labels, node, reuse, at };
        let created: Arc<Volume> = self.write(command).await?;
        caller.identified(ObjectKind::Volume, id, &name, created.version);
        tracing::info!(%caller, volume = %id, %name, "volume created");
        Ok(Response::new(show(&self.store.read().state, &created, &VolumeSizes::new())))
    }

    async fn get(&self, request: Request<v1::Reference>) -> Result<Response<v1::Volume>, Status> {
        let published = self.read(&request).await?;
        let volume = published.state.find_volume(&request.get_ref().reference).map_err(status_of)?;
        let sizes = self.query_sizes(&published.state, [volume]).await;
        Ok(Response::new(show(&published.state, volume, &sizes)))
    }

    async fn list(
        &self,
        request: Request<v1::ListVolumesRequest>,
    ) -> Result<Response<v1::ListVolumesResponse>, Status> {
        let v1::ListVolumesRequest { page_size, page_token, sizes, all } = request.get_ref();
        let page = Page::<VolumeName>::parse(*page_size, page_token)?;
        let published = self.read(&request).await?;
        let state = &published.state;
        let later = state.volumes_after(page.after.as_ref());
        let later = later.filter(|volume| *all || volume.released.is_none());
        let (volumes, next_page_token) = page.cut(later, |volume| volume.name.clone());
        // What no volume has is listed after all others.
        let held = match *sizes && *all && next_page_token.is_empty() {
            true => self.query_held(state).await,
            false => self.query_sizes(state, volumes.iter().copied().filter(|_| *sizes)).await,
        };
        let mut volumes: Vec<_> = volumes.iter().map(|volume| show(state, volume, &held)).collect();
        if *sizes && *all && next_page_token.is_empty() {
            volumes.extend(unrecorded(state, &held));
        }
        Ok(Response::new(v1::ListVolumesResponse { volumes, next_page_token }))
    }

    async fn remove(
        &self,
        request: Request<v1::RemoveVolumeRequest>,
    ) -> Result<Response<v1::Volume>, Status> {
        let caller = AuditedCall::of(&request);
        let v1::RemoveVolumeRequest { reference, purge, node } = request.into_inner();
        caller.named(ObjectKind::Volume, &reference);
        let published = self.read_latest().await?;
        if !node.is_empty() {
            let node = published.state.find_node(&node).map_err(status_of)?;
            let name: VolumeName = parse_field("reference", &reference).map_err(status_of)?;
            if !purge {
                let message = "is only for data that is deleted; set purge";
                return Err(status_of(Violation::new("node", message)));
            }
            let recorded = published.state.volume_by_name(&name);
            if recorded.is_none_or(|volume| volume.node != Some(node.id)) {
                return self.purge_unrecorded(&caller, node, &name).await.map(Response::new);
            }
        }
        let volume = published.state.find_volume(&reference).map_err(status_of)?;
        let id = volume.id;
        let data = match purge {
            true => VolumeData::Unknown,
            false => self.query_data(&published.state, volume).await,
        };
        let command = Command::RemoveVolume { id, purge, data, at: self.clock.now() };
        let removed: Arc<Volume> = self.write(command).await?;
        caller.identified(ObjectKind::Volume, id, &removed.name, removed.version);
        if purge {
            self.delete_data(&caller, id).await?;
        }
        tracing::info!(%caller, volume = %id, name = %removed.name, purge, "volume removed");
        let shown = show(&published.state, &removed, &VolumeSizes::new());
        Ok(Response::new(shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_with_invalid_fields_names_each() {
        let good = v1::CreateVolumeRequest { id: "0".repeat(25), name: "data".into(), ..Default::default() };
        assert_eq!(VolumeRequest::parse(&good).unwrap().driver, VolumeDriver::Local);
        let pair = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let check = |request: v1::CreateVolumeRequest, expected: &[&str]| {
            let wrong = VolumeRequest::parse(&request).unwrap_err().0;
            assert_eq!(wrong.iter().map(|violation| violation.path.as_str()).collect::<Vec<_>>(), expected);
        };
        let wrong = v1::CreateVolumeRequest {
            id: "!".into(),
            name: "a/b".into(),
            driver: "nfs".into(),
            labels: pair("no key", ""),
            ..Default::default()
        };
        check(wrong, &["id", "name", "driver", "labels[\"no key\"]"]);
        let options = pair("size", "1G");
        check(v1::CreateVolumeRequest { options, driver: "local".into(), ..good }, &["options[\"size\"]"]);
    }
}
