//! Managers.

use warren_core::Departed;
use warren_proto::convert::suffrage;
use warren_proto::v1;
use warren_types::{ManagerId, Member, Violations};

use super::super::read::{at, given, text};

pub(super) fn stored_member(member: &Member) -> v1::StoredMember {
    v1::StoredMember {
        member: member.member,
        id: member.id.to_string(),
        name: member.name.to_string(),
        address: member.address.to_string(),
        wanted: v1::Suffrage::from(member.wanted).into(),
        replaces: member.replaces,
        removing: member.removing,
        level: member.level,
        version: member.version,
        created_at: member.created_at.0,
    }
}

pub(super) fn member(stored: v1::StoredMember) -> Result<Member, Violations> {
    Ok(Member {
        member: stored.member,
        id: text("member.id", &stored.id)?,
        name: text("member.name", &stored.name)?,
        address: text("member.address", &stored.address)?,
        wanted: given("member.wanted", suffrage(stored.wanted)?)?,
        replaces: stored.replaces,
        removing: stored.removing,
        level: stored.level,
        version: stored.version,
        created_at: at(stored.created_at),
    })
}

pub(super) fn stored_departed((manager, departed): &(ManagerId, Departed)) -> v1::StoredDeparted {
    let Departed { member, index } = *departed;
    v1::StoredDeparted { id: manager.to_string(), member, index }
}

pub(super) fn departed(stored: &v1::StoredDeparted) -> Result<(ManagerId, Departed), Violations> {
    let v1::StoredDeparted { id, member, index } = stored;
    Ok((text("cluster.departed", id)?, Departed { member: *member, index: *index }))
}
