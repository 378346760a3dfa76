//! Managers.

use warren_types::{Suffrage, Violation, Violations};

use crate::v1;

impl From<Suffrage> for v1::Suffrage {
    fn from(suffrage: Suffrage) -> Self {
        match suffrage {
            Suffrage::Voter => Self::Voter,
            Suffrage::Learner => Self::Learner,
        }
    }
}

/// The desired suffrage of a manager; `None` if unspecified.
pub fn suffrage(wire: i32) -> Result<Option<Suffrage>, Violations> {
    match v1::Suffrage::try_from(wire) {
        Ok(v1::Suffrage::Unspecified) => Ok(None),
        Ok(v1::Suffrage::Voter) => Ok(Some(Suffrage::Voter)),
        Ok(v1::Suffrage::Learner) => Ok(Some(Suffrage::Learner)),
        Err(_) => {
            let what = format!("{wire} is not a suffrage that this version supports; give voter or learner");
            Err(Violation::new("desiredSuffrage", what).into())
        }
    }
}
