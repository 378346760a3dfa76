//! Managers.

use warren_proto::convert::suffrage;
use warren_proto::v1;
use warren_types::{Member, Violations};

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
