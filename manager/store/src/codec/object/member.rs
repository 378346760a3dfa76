//! Managers.

use warren_core::DepartedManager;
use warren_proto::convert::suffrage;
use warren_proto::v1;
use warren_types::{ManagerId, Member, Violations};

use super::super::field::{parse, required, timestamp};

pub(super) fn stored_member(member: &Member) -> v1::StoredMember {
    v1::StoredMember {
        member_id: member.member_id,
        id: member.manager_id.to_string(),
        name: member.name.to_string(),
        address: member.address.to_string(),
        desired_suffrage: v1::Suffrage::from(member.desired_suffrage).into(),
        replaces: member.replaces,
        removing: member.removing,
        feature_level: member.level,
        version: member.version,
        created_at: member.created_at.0,
    }
}

pub(super) fn member(stored: v1::StoredMember) -> Result<Member, Violations> {
    Ok(Member {
        member_id: stored.member_id,
        manager_id: parse("member.id", &stored.id)?,
        name: parse("member.name", &stored.name)?,
        address: parse("member.address", &stored.address)?,
        desired_suffrage: required("member.desiredSuffrage", suffrage(stored.desired_suffrage)?)?,
        replaces: stored.replaces,
        removing: stored.removing,
        level: stored.feature_level,
        version: stored.version,
        created_at: timestamp(stored.created_at),
    })
}

pub(super) fn stored_departed(
    (manager, departed): &(ManagerId, DepartedManager),
) -> v1::StoredDepartedManager {
    let DepartedManager { member, index } = *departed;
    v1::StoredDepartedManager { id: manager.to_string(), member_id: member, index }
}

pub(super) fn departed(
    stored: &v1::StoredDepartedManager,
) -> Result<(ManagerId, DepartedManager), Violations> {
    let v1::StoredDepartedManager { id, member_id: member, index } = stored;
    Ok((parse("cluster.departed", id)?, DepartedManager { member: *member, index: *index }))
}
