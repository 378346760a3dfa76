//! `warren context ...`: the contexts file. No manager is asked.

use warren_client::Contexts;

use crate::args::{ContextCommand, GlobalArgs, ListingArgs};
use crate::connect::contexts_file;
use crate::failure::{CommandError, ExitKind, from_client};
use crate::output::{self, Listing};
use crate::view::context::ContextView;
use crate::view::now;

pub fn run(global: &GlobalArgs, command: ContextCommand) -> Result<(), CommandError> {
    match command {
        ContextCommand::Ls(listing) => ls(global, &listing),
        ContextCommand::Use { name } => {
            let what = format!("context {name:?} was not selected");
            Contexts::set_current(&contexts_file(&what)?, &name)
                .map_err(|error| from_client(&what, error))?;
            output::print(&format!("{name}\n"))
        }
        ContextCommand::Rm { names } => names.iter().try_for_each(|name| {
            let what = format!("context {name:?} was not removed");
            Contexts::remove(&contexts_file(&what)?, name).map_err(|error| from_client(&what, error))?;
            output::print(&format!("{name}\n"))
        }),
    }
}

fn ls(global: &GlobalArgs, listing: &ListingArgs) -> Result<(), CommandError> {
    let what = "contexts were not listed";
    let list = Listing::new(global.output, listing, what)?;
    if list.is_watched() {
        let why = "contexts are in a file of this machine, whose changes are no events";
        return Err(CommandError::new(ExitKind::Usage, what, why, "leave out --watch"));
    }
    let contexts = Contexts::load(&contexts_file(what)?).map_err(|error| from_client(what, error))?;
    let current = global.context.as_ref().or(contexts.current.as_ref());
    let view = |context| ContextView::new(context, current.map(String::as_str));
    list.print(contexts.iter().map(view).collect::<Vec<_>>(), now())
}
