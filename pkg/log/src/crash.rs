//! What the logs are worth when the power goes, bits flip, or the disk is full.
//!
//! All of it does one thing: writes [`workload::Step`]s, lets something happen, opens again, and
//! compares with what memory holds after the same steps. What was acknowledged must be there, and of
//! the step that was under way all or nothing; or the log must be refused.

mod damage;
mod device;
mod full;
mod growth;
mod power_cut;
mod recorder;
mod reorder;
mod torn;
mod workload;

use std::path::Path;

use warren_types::{ClusterId, Id, ManagerId};

use crate::{Engine, LogStore, Owner, Result};

/// Opens a log of one owner, which matters to none of these tests.
fn open(dir: &Path, engine: Engine) -> Result<Box<dyn LogStore>> {
    let owner = Owner { cluster: ClusterId(Id(1)), manager: ManagerId(Id(2)), member: 3 };
    crate::open(dir, engine, owner)
}
