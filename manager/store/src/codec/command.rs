//! Commands.

use warren_core::state::{HeldVolumes, VolumeData};
use warren_core::{CaCommand, Command, KeyCommand, KeyRotationStep, NewTask, RolloutStep};
use warren_proto::convert::{WireForm, read_field};
use warren_proto::v1;
use warren_proto::v1::advance_rollout::Step;
use warren_proto::v1::command::Command as Wire;
use warren_proto::v1::rotate_keys::Step as KeyStep;
use warren_types::{Bytes, Timestamp, Violation, Violations};

/// The commands whose messages have the same fields: `message field`, or `message field: command field`.
macro_rules! commands {
    ($($name:ident { $($wire:ident $(: $field:ident)?),* })*) => {
        pub(super) fn to_wire(command: &Command) -> Wire {
            match command {
                $(Command::$name { $($($field:)? $wire),* } => {
                    Wire::$name(v1::$name { $($wire: $wire.to_wire()),* })
                })*
                Command::AdvanceRollout { term, service, revision, step, at } => {
                    Wire::AdvanceRollout(v1::AdvanceRollout {
                        term: *term,
                        service_id: service.to_wire(),
                        revision: *revision,
                        step: Some(wire_rollout_step(step)),
                        at: at.to_wire(),
                    })
                }
                Command::CreateTasks { term, service, revision, slots, at } => Wire::CreateTasks(v1::CreateTasks {
                    term: *term,
                    service_id: service.to_wire(),
                    revision: *revision,
                    slots: slots.iter().map(wire_new_task).collect(),
                    at: at.to_wire(),
                }),
                Command::Ca(command) => wire_ca_command(command),
                Command::Key(command) => wire_key_command(command),
                Command::RemoveVolume { id, purge, data, at } => {
                    let (data, size_bytes) = wire_volume_data(*data);
                    let (id, purge, at) = (id.to_wire(), *purge, at.to_wire());
                    Wire::RemoveVolume(v1::RemoveVolume { id, purge, at, data, size_bytes })
                }
                Command::ReportVolumes { node, session, held, at } => Wire::ReportVolumes(v1::ReportVolumes {
                    node_id: node.to_wire(),
                    session: *session,
                    held: held.names.to_wire(),
                    truncated: held.is_truncated,
                    at: at.to_wire(),
                }),
            }
        }

        pub(super) fn from_wire(wire: Wire) -> Result<Command, Violations> {
            Ok(match wire {
                $(Wire::$name(v1::$name { $($wire),* }) => {
                    $(let $wire = read_field(stringify!($wire), $wire)?;)*
                    Command::$name { $($($field:)? $wire),* }
                })*
                Wire::AdvanceRollout(w) => Command::AdvanceRollout {
                    term: w.term,
                    service: read_field("service_id", w.service_id)?,
                    revision: w.revision,
                    step: rollout_step(w.step)?,
                    at: Timestamp(w.at),
                },
                Wire::CreateTasks(w) => Command::CreateTasks {
                    term: w.term,
                    service: read_field("service_id", w.service_id)?,
                    revision: w.revision,
                    slots: w.slots.into_iter().map(new_task).collect::<Result<_, _>>()?,
                    at: Timestamp(w.at),
                },
                Wire::BeginCaRotation(w) => Command::Ca(CaCommand::Begin {
                    digest: read_field("digest", w.digest)?,
                    sealed: read_field("sealed", w.sealed)?,
                    current: read_field("current", w.current)?,
                    certificate: w.certificate,
                    at: Timestamp(w.at),
                }),
                Wire::AdvanceCaRotation(w) => Command::Ca(CaCommand::Advance {
                    term: w.term,
                    digest: read_field("digest", w.digest)?,
                    phase: read_field("phase", w.phase)?,
                    at: Timestamp(w.at),
                }),
                Wire::RecordCaRenewal(w) => Command::Ca(CaCommand::RecordRenewal {
                    digest: read_field("digest", w.digest)?,
                    holder: read_field("holder", w.holder)?,
                    at: Timestamp(w.at),
                }),
                Wire::SetUnlockKey(w) => Command::Key(KeyCommand::SetUnlockKey {
                    key: read_field("key", w.key)?,
                    replaces: read_field("replaces", w.replaces)?,
                    at: Timestamp(w.at),
                }),
                Wire::RotateKeys(w) => Command::Key(KeyCommand::Rotate {
                    number: w.number,
                    step: key_rotation_step(w.step)?,
                    at: Timestamp(w.at),
                }),
                Wire::ResealData(w) => Command::Key(KeyCommand::Reseal {
                    number: w.number,
                    items: read_field("items", w.items)?,
                    at: Timestamp(w.at),
                }),
                Wire::RevokeKey(w) => {
                    Command::Key(KeyCommand::Revoke { key: read_field("key", w.key)?, at: Timestamp(w.at) })
                }
                Wire::RemoveVolume(w) => Command::RemoveVolume {
                    id: read_field("id", w.id)?,
                    purge: w.purge,
                    data: volume_data(w.data, w.size_bytes)?,
                    at: Timestamp(w.at),
                },
                Wire::ReportVolumes(w) => Command::ReportVolumes {
                    node: read_field("node_id", w.node_id)?,
                    session: w.session,
                    held: HeldVolumes { names: read_field("held", w.held)?, is_truncated: w.truncated },
                    at: Timestamp(w.at),
                },
            })
        }
    };
}

commands! {
    CreateCluster { id, ranges, feature_level, at }
    UpdateCluster { version, change, at }
    RaiseFeatureLevel { term, feature_level: level }
    CreateService { id, spec, at }
    ScaleService { id, version, replicas, at }
    UpdateService { id, version, spec, force, at }
    RollbackService { id, version, revision, at }
    ResumeRollout { id, version, at }
    RemoveService { id, version, at, force }
    DeleteService { term, id }
    AssignTasks { term, placements, at }
    SetDesiredTaskState { term, task_ids: tasks, desired, at }
    DeleteTasks { term, task_ids: tasks }
    ReportTasks { node_id: node, session, reports, at }
    RegisterNode { id, name, description, at, role, taints }
    UpdateNode { id, version, label_add, label_rm, availability, at, taint_add, taint_rm }
    RemoveNode { id, force, at }
    RequestVerification { node_ids: nodes, at }
    BeginVerification { term, node_id: node, at }
    RecordVerification { term, node_id: node, answered, results, at }
    SetNodeStatus { term, node_id: node, session, status, at }
    SetNodeConditions { node_id: node, session, conditions, at }
    OpenSession { node_id: node, description, manager_member_id: manager, at }
    CreateToken { id, role, hash, expires_at, max_uses, at, labels }
    RemoveToken { id, at }
    DeleteTokens { term, token_ids: tokens, at }
    CreateUser { id, name, role, login_hash, login_expires_at, expires_at, at }
    UpdateUser { id, version, role, login_hash, login_expires_at, remove_keys, at }
    RemoveUser { id, at }
    LoginUser { hash, key, at }
    SetAdministratorKey { member_id: member, key, at }
    SetNodeKey { id, key, at }
    JoinNode { hash, id, name, description, at, taints }
    CreateSecretObject { id, kind, name, labels, data, at }
    UpdateSecretObject { id, version, data, at }
    RemoveSecretObject { id, at }
    CreateVolume { id, name, driver, options, labels, node_id: node, at, reuse }
    DeleteVolume { id, at }
    CreateNetwork { id, name, labels, internal, at }
    RemoveNetwork { id, at }
    ReleaseAddresses { term, acknowledged, at }
    RecordImport { image, digest, at }
    RegisterMember { member_id: member, id, name, address, feature_level: level, at }
    JoinManager { hash, id, name, address, feature_level: level, at }
    UpdateMember { member_id: member, version, desired_suffrage, address, at }
    RemoveMember { member_id: member, at }
    DeleteMember { term, member_id: member }
}

fn wire_ca_command(command: &CaCommand) -> Wire {
    match command {
        CaCommand::Begin { digest, sealed, current, certificate, at } => {
            Wire::BeginCaRotation(v1::BeginCaRotation {
                digest: digest.to_wire(),
                sealed: sealed.to_wire(),
                current: current.to_wire(),
                certificate: certificate.clone(),
                at: at.to_wire(),
            })
        }
        CaCommand::Advance { term, digest, phase, at } => Wire::AdvanceCaRotation(v1::AdvanceCaRotation {
            term: *term,
            digest: digest.to_wire(),
            phase: phase.to_wire(),
            at: at.to_wire(),
        }),
        CaCommand::RecordRenewal { digest, holder, at } => Wire::RecordCaRenewal(v1::RecordCaRenewal {
            digest: digest.to_wire(),
            holder: holder.to_wire(),
            at: at.to_wire(),
        }),
    }
}

fn wire_key_command(command: &KeyCommand) -> Wire {
    match command {
        KeyCommand::SetUnlockKey { key, replaces, at } => Wire::SetUnlockKey(v1::SetUnlockKey {
            key: key.to_wire(),
            replaces: replaces.to_wire(),
            at: at.to_wire(),
        }),
        KeyCommand::Rotate { number, step, at } => {
            let step = match step {
                KeyRotationStep::Begin => KeyStep::Begin(true),
                KeyRotationStep::Record { phase, member } => {
                    KeyStep::Record(v1::KeyRecord { phase: phase.to_wire(), member_id: *member })
                }
                KeyRotationStep::Offer(next) => KeyStep::Offer(next.to_wire()),
                KeyRotationStep::Advance(phase) => KeyStep::Advance(phase.to_wire()),
            };
            Wire::RotateKeys(v1::RotateKeys { number: *number, step: Some(step), at: at.to_wire() })
        }
        KeyCommand::Reseal { number, items, at } => {
            Wire::ResealData(v1::ResealData { number: *number, items: items.to_wire(), at: at.to_wire() })
        }
        KeyCommand::Revoke { key, at } => {
            Wire::RevokeKey(v1::RevokeKey { key: key.to_wire(), at: at.to_wire() })
        }
    }
}

fn key_rotation_step(wire: Option<KeyStep>) -> Result<KeyRotationStep, Violations> {
    Ok(match wire {
        None => return Err(Violation::new("step", "is missing").into()),
        Some(KeyStep::Begin(_)) => KeyRotationStep::Begin,
        Some(KeyStep::Record(v1::KeyRecord { phase, member_id })) => {
            KeyRotationStep::Record { phase: read_field("phase", phase)?, member: member_id }
        }
        Some(KeyStep::Offer(next)) => KeyRotationStep::Offer(read_field("offer", next)?),
        Some(KeyStep::Advance(phase)) => KeyRotationStep::Advance(read_field("advance", phase)?),
    })
}

fn wire_new_task(new: &NewTask) -> v1::NewTask {
    let NewTask { slot, not_before, desired, replaces, bound_to, label_value } = new;
    v1::NewTask {
        slot: *slot,
        not_before: not_before.to_wire(),
        desired: desired.to_wire(),
        replaces: *replaces,
        bound_to: bound_to.to_wire(),
        label_value: label_value.as_deref().map(str::to_owned),
    }
}

fn new_task(wire: v1::NewTask) -> Result<NewTask, Violations> {
    let v1::NewTask { slot, not_before, desired, replaces, bound_to, label_value } = wire;
    Ok(NewTask {
        slot,
        not_before: read_field("not_before", not_before)?,
        desired: read_field("desired", desired)?,
        replaces,
        bound_to: read_field("bound_to", bound_to)?,
        label_value: label_value.map(Into::into),
    })
}

fn wire_rollout_step(step: &RolloutStep) -> Step {
    match step {
        RolloutStep::Updated(updated) => Step::Updated(*updated),
        RolloutStep::ImagePinned(digest) => Step::ImagePinned(digest.to_wire()),
        RolloutStep::ImageUnresolved(reason) => Step::ImageUnresolved(reason.to_string()),
        RolloutStep::Completed => Step::Completed(v1::RolloutCompleted {}),
        RolloutStep::Failed(failure) => Step::Failed(failure.to_wire()),
    }
}

fn rollout_step(wire: Option<Step>) -> Result<RolloutStep, Violations> {
    match wire {
        Some(Step::Updated(updated)) => Ok(RolloutStep::Updated(updated)),
        Some(Step::ImagePinned(digest)) => read_field("image_pinned", digest).map(RolloutStep::ImagePinned),
        Some(Step::ImageUnresolved(reason)) => Ok(RolloutStep::ImageUnresolved(reason.into())),
        Some(Step::Completed(v1::RolloutCompleted {})) => Ok(RolloutStep::Completed),
        Some(Step::Failed(wire)) => read_field("failed", wire).map(RolloutStep::Failed),
        None => Err(Violation::new("step", "is missing").into()),
    }
}

fn wire_volume_data(data: VolumeData) -> (i32, Option<u64>) {
    let status = match data {
        VolumeData::Unknown => v1::VolumeDataStatus::Unknown,
        VolumeData::Absent => v1::VolumeDataStatus::Absent,
        VolumeData::Present(_) => v1::VolumeDataStatus::Present,
    };
    (status.into(), data.size().map(|size| size.0))
}

fn volume_data(status: i32, size: Option<u64>) -> Result<VolumeData, Violations> {
    match (v1::VolumeDataStatus::try_from(status), size) {
        (Ok(v1::VolumeDataStatus::Unknown), None) => Ok(VolumeData::Unknown),
        (Ok(v1::VolumeDataStatus::Absent), None) => Ok(VolumeData::Absent),
        (Ok(v1::VolumeDataStatus::Present), size) => Ok(VolumeData::Present(size.map(Bytes))),
        _ => Err(Violation::new("data", "is unknown to this version").into()),
    }
}
