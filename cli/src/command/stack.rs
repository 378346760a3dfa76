//! `warren stack ...`

mod files;

use crate::args::{GlobalArgs, StackCommand, StackConfigArgs};
use crate::failure::CommandError;
use crate::output;

pub async fn run(global: &GlobalArgs, command: StackCommand) -> Result<(), CommandError> {
    match command {
        StackCommand::Config(args) => config(global, &args),
    }
}

/// Prints the model after all that Warren would do with it was checked.
fn config(global: &GlobalArgs, args: &StackConfigArgs) -> Result<(), CommandError> {
    let what = "the Compose files were not accepted";
    let (project, _) = files::load_stack(&args.files, args.name.as_ref(), what)?;
    output::print_document(global.output, &project)
}
