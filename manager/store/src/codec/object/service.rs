//! A service with its revisions: the current one, then the earlier ones from the oldest on, each with its
//! pinned image digest.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_proto::convert::{WireForm, read_field};
use warren_proto::v1;
use warren_types::{
    ImageDigest, Placement, Revision, Service, Timestamp, UserNamespace, Violation, Violations,
};

use super::unless_host;

pub(super) fn stored_service(service: &Service) -> v1::StoredService {
    let revisions = std::iter::once(&service.revision).chain(&service.history);
    v1::StoredService {
        id: service.id.to_string(),
        version: service.version,
        created_at: service.created_at.0,
        updated_at: service.updated_at.0,
        spec: service.spec.to_wire(),
        revisions: revisions.map(|revision| stored_revision(revision, &service.pins)).collect(),
        removing: service.removing,
        next_task_number: service.next_task_number,
        rollout: service.rollout.to_wire(),
        virtual_addresses: service
            .virtual_addresses
            .iter()
            .map(|(network, address)| (network.to_wire(), address.to_wire()))
            .collect(),
    }
}

fn stored_revision(revision: &Revision, pins: &BTreeMap<u64, ImageDigest>) -> v1::StoredRevision {
    v1::StoredRevision {
        number: revision.number,
        task: revision.task.to_wire(),
        ports: revision.ports.to_wire(),
        created_at: revision.created_at.0,
        placement: (revision.placement != Placement::default()).then(|| (&revision.placement).into()),
        force_count: revision.force_count,
        digest: pins.get(&revision.number).cloned().to_wire(),
        secret_objects: revision.secret_objects.to_wire(),
        labels: revision.labels.clone(),
        user_namespace: unless_host(revision.user_namespace).to_wire(),
        default_no_new_privileges: revision.default_no_new_privileges,
    }
}

pub(super) fn service(stored: v1::StoredService) -> Result<Service, Violations> {
    let mut pins = BTreeMap::new();
    let mut revisions = Vec::with_capacity(stored.revisions.len());
    for (index, stored) in stored.revisions.into_iter().enumerate() {
        let at = |path: &str| format!("service.revisions[{index}].{path}");
        if let Some(digest) = read_field(&at("digest"), stored.digest.clone())? {
            pins.insert(stored.number, digest);
        }
        revisions.push(Arc::new(revision(stored, at)?));
    }
    if revisions.is_empty() {
        return Err(Violation::new("service.revisions", "is empty").into());
    }
    let path = "service.virtual_addresses";
    let virtual_address =
        |(network, address): (String, String)| Ok((read_field(path, network)?, read_field(path, address)?));
    Ok(Service {
        id: read_field("service.id", stored.id)?,
        version: stored.version,
        created_at: Timestamp(stored.created_at),
        updated_at: Timestamp(stored.updated_at),
        spec: read_field("service.spec", stored.spec)?,
        revision: revisions.remove(0),
        history: revisions,
        pins,
        removing: stored.removing,
        next_task_number: stored.next_task_number,
        rollout: read_field("service.rollout", stored.rollout)?,
        virtual_addresses: stored
            .virtual_addresses
            .into_iter()
            .map(virtual_address)
            .collect::<Result<_, Violations>>()?,
    })
}

fn revision(stored: v1::StoredRevision, path: impl Fn(&str) -> String) -> Result<Revision, Violations> {
    Ok(Revision {
        number: stored.number,
        created_at: Timestamp(stored.created_at),
        task: read_field(&path("task"), stored.task)?,
        ports: read_field(&path("ports"), stored.ports)?,
        placement: stored
            .placement
            .map_or_else(|| Ok(Placement::default()), |wire| read_field(&path("placement"), wire))?,
        force_count: stored.force_count,
        secret_objects: read_field(&path("secret_objects"), stored.secret_objects)?,
        labels: stored.labels,
        user_namespace: read_field::<Option<UserNamespace>, _>(
            &path("user_namespace"),
            stored.user_namespace,
        )?
        .unwrap_or_default(),
        default_no_new_privileges: stored.default_no_new_privileges,
    })
}
