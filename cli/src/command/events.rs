//! `warren events`: prints events until the last one, or for ever.

use std::io::{self, IsTerminal, Write};

use warren_client::{EventMessage, EventQuery, EventStart};
use warren_daemon::printable;
use warren_types::Timestamp;

use crate::args::{EventsArgs, GlobalArgs, OutputFormat};
use crate::connect::connect;
use crate::failure::{CommandError, ExitKind, from_client_with_hint};
use crate::view::event::EventView;

pub async fn run(global: &GlobalArgs, args: EventsArgs) -> Result<(), CommandError> {
    let what = "events were not read";
    let EventsArgs { follow, since, object } = args;
    let object = object.unwrap_or_default();
    let start = since.unwrap_or(if follow { EventStart::New } else { EventStart::Oldest });
    let query = EventQuery { kind: object.noun, reference: object.name, follow, start };
    let client = connect(global, what).await?;
    let mut events = client.cluster().events(query);
    let refused = |error| {
        let hint = "begin later: with the index that is named, a time, or without --since".to_owned();
        from_client_with_hint(what, error, warren_proto::status::EVENTS_EXPIRED, hint)
    };
    let mut stdout = io::stdout().lock();
    while let Some(message) = events.next().await.map_err(refused)? {
        let printed = match message {
            EventMessage::Begin(begin) => {
                if begin.truncated {
                    let (index, at) = (begin.oldest_index, Timestamp(begin.oldest_at));
                    eprintln!(
                        "events up to index {index} ({at}) are not kept any more by the manager that answers"
                    );
                }
                Ok(())
            }
            EventMessage::Event(position, event) => {
                let event = EventView::new(position, *event);
                let text = |format: OutputFormat| event.line(format == OutputFormat::Wide);
                print_document(&mut stdout, global.output, &event, text)
            }
        };
        match printed {
            // The reader closed the pipe (`| head`).
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => {
                return Err(CommandError::new(ExitKind::Failed, "events were not printed", error, ""));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Prints one event or line: a text, or a document of which YAML has several.
pub(super) fn print_document(
    out: &mut io::StdoutLock<'_>,
    format: OutputFormat,
    document: &impl serde::Serialize,
    line: impl Fn(OutputFormat) -> String,
) -> io::Result<()> {
    let text = match format {
        OutputFormat::Table | OutputFormat::Wide => line(format) + "\n",
        OutputFormat::Json => serde_json::to_string(document)? + "\n",
        OutputFormat::Yaml => {
            format!("---\n{}", serde_saphyr::to_string(document).map_err(io::Error::other)?)
        }
    };
    match out.is_terminal() {
        true => out.write_all(printable(&text).as_bytes())?,
        false => out.write_all(text.as_bytes())?,
    }
    out.flush()
}
