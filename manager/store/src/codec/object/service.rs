//! A service with its revisions: the current one, then the earlier ones from the oldest on, each with its
//! pinned image digest.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_proto::convert::stored_service_spec;
use warren_proto::v1;
use warren_types::{
    ImageDigest, Placement, PublishedPort, Revision, SecretObjectVersion, Service, TaskSpec, Violation,
    Violations,
};

use super::super::field::{parse, parse_optional, required, timestamp};
use super::super::rollout::{rollout, stored_rollout};

pub(super) fn stored_service(service: &Service) -> v1::StoredService {
    let revisions = std::iter::once(&service.revision).chain(&service.history);
    v1::StoredService {
        id: service.id.to_string(),
        version: service.version,
        created_at: service.created_at.0,
        updated_at: service.updated_at.0,
        spec: Some((&*service.spec).into()),
        revisions: revisions.map(|revision| stored_revision(revision, &service.pins)).collect(),
        removing: service.removing,
        next_task_number: service.next_task_number,
        rollout: stored_rollout(&service.rollout),
    }
}

fn stored_revision(revision: &Revision, pins: &BTreeMap<u64, ImageDigest>) -> v1::StoredRevision {
    v1::StoredRevision {
        number: revision.number,
        task: Some((&revision.task).into()),
        ports: revision.ports.iter().map(Into::into).collect(),
        created_at: revision.created_at.0,
        placement: (revision.placement != Placement::default()).then(|| (&revision.placement).into()),
        force_count: revision.force_count,
        digest: pins.get(&revision.number).map(ToString::to_string).unwrap_or_default(),
        secret_objects: revision.secret_objects.iter().map(Into::into).collect(),
        labels: revision.labels.clone(),
    }
}

pub(super) fn service(stored: v1::StoredService) -> Result<Service, Violations> {
    let mut pins = BTreeMap::new();
    let mut revisions = Vec::with_capacity(stored.revisions.len());
    for (index, stored) in stored.revisions.into_iter().enumerate() {
        let at = |path: &str| format!("service.revisions[{index}].{path}");
        if let Some(digest) = parse_optional(&at("digest"), &stored.digest)? {
            pins.insert(stored.number, digest);
        }
        revisions.push(Arc::new(revision(stored, at)?));
    }
    if revisions.is_empty() {
        return Err(Violation::new("service.revisions", "is empty").into());
    }
    Ok(Service {
        id: parse("service.id", &stored.id)?,
        version: stored.version,
        created_at: timestamp(stored.created_at),
        updated_at: timestamp(stored.updated_at),
        spec: Arc::new(stored_service_spec(required("service.spec", stored.spec)?)?),
        revision: revisions.remove(0),
        history: revisions,
        pins,
        removing: stored.removing,
        next_task_number: stored.next_task_number,
        rollout: rollout(stored.rollout)?,
    })
}

fn revision(stored: v1::StoredRevision, path: impl Fn(&str) -> String) -> Result<Revision, Violations> {
    Ok(Revision {
        number: stored.number,
        created_at: timestamp(stored.created_at),
        task: TaskSpec::try_from(required(&path("task"), stored.task)?)?,
        ports: stored.ports.into_iter().map(PublishedPort::try_from).collect::<Result<_, _>>()?,
        placement: stored.placement.map(Placement::try_from).transpose()?.unwrap_or_default(),
        force_count: stored.force_count,
        secret_objects: stored
            .secret_objects
            .into_iter()
            .map(SecretObjectVersion::try_from)
            .collect::<Result<_, _>>()?,
        labels: stored.labels,
    })
}
