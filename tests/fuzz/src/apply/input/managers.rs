//! Steps about managers.

use arbitrary::Result;
use warren_core::Command;
use warren_types::{ManagerAddress, ManagerId, MemberId, NodeName, Suffrage, Timestamp};

use super::FuzzInput;

impl FuzzInput<'_> {
    pub(super) fn manager_command(&mut self, kind: u8, at: Timestamp) -> Result<Command> {
        Ok(match kind % 8 {
            0 => {
                let (member, id, name) = (self.member()?, self.manager()?, self.manager_name()?);
                let (address, level) = (self.address()?, self.level()?);
                Command::RegisterMember { member, id, name, address, level, at }
            }
            1 | 2 => {
                let (hash, id, name) = (self.hash()?, self.manager()?, self.manager_name()?);
                let (address, level) = (self.address()?, self.level()?);
                Command::JoinManager { hash, id, name, address, level, at }
            }
            3 => {
                let (member, version, byte) = (self.member()?, self.version()?, self.byte()?);
                let expected = [None, Some(Suffrage::Voter), Some(Suffrage::Learner)][usize::from(byte % 3)];
                let address = if self.sometimes()? { Some(self.address()?) } else { None };
                Command::UpdateMember { member, version, desired_suffrage: expected, address, at }
            }
            4 => Command::RemoveMember { member: self.member()?, at },
            5 => Command::DeleteMember { term: self.number(3, 1)?, member: self.member()? },
            6 => {
                let (node, manager, description) = (self.node()?, self.member()?, self.description()?);
                Command::OpenSession { node, description, manager, at }
            }
            _ => Command::RemoveNode { id: self.node()?, force: true, at },
        })
    }

    fn member(&mut self) -> Result<MemberId> {
        self.number(0, 6)
    }

    fn manager(&mut self) -> Result<ManagerId> {
        self.id().map(ManagerId)
    }

    fn manager_name(&mut self) -> Result<NodeName> {
        Ok(self.name()?.parse().expect("the name is valid"))
    }

    fn address(&mut self) -> Result<ManagerAddress> {
        let given = ["10.0.0.1:8080", "10.0.0.2:8080", "[fd00::1]:1", "m.example.org:65535"];
        Ok(self.0.choose(&given)?.parse().expect("the address is valid"))
    }
}
