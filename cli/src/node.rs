//! `warren manager init|run`: a manager and, unless told otherwise, a worker in one process. The worker dials
//! the manager's port like any other.

mod hybrid;
mod plan;
mod settings;

use crate::args::{Global, ManagerCommand};
use crate::failure::Failure;

/// Runs until it is told to stop.
pub async fn run(_: &Global, command: ManagerCommand) -> Result<(), Failure> {
    let (args, create) = match command {
        ManagerCommand::Init(args) => (args, true),
        ManagerCommand::Run(args) => (args, false),
    };
    let remembered = settings::load(&args.data_dir)?;
    let settings = settings::merge(remembered, args.settings, create, &args.data_dir)?;
    let plan = plan::Plan::new(args.data_dir, &settings, &plan::Machine::look()?)?;
    hybrid::run(plan, create.then_some(settings)).await
}
