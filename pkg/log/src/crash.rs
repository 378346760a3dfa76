//! Crash tests: power cuts, flipped bits and full disks.
//!
//! Each test writes [`workload::WorkloadStep`]s, injects a fault, opens the log again, and compares with the
//! in-memory result of the same steps. Acknowledged writes must be present, and the step in progress
//! completely or not at all; or opening must fail.

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

use crate::{LogEngine, LogOwner, LogStore, Result};

/// Opens a log with a fixed owner.
fn open(dir: &Path, engine: LogEngine) -> Result<Box<dyn LogStore>> {
    let owner = LogOwner { cluster: ClusterId(Id(1)), manager: ManagerId(Id(2)), member: 3 };
    crate::open(dir, engine, owner)
}
