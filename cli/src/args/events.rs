//! `warren events ...` and `warren why ...`

use clap::Args;
use warren_client::EventStart;

use super::value;

/// Notes at the end of `events --help`.
const EVENTS_NOTES: &str = "\
An event is a change of an object that the managers stored: also that a task changed its state, but not each step of \
a pull. All managers have the same events, each the newest 10,000 or so; one that started from a snapshot has those \
since. --since INDEX continues after what an earlier command printed last. It fails if events after it are not kept \
any more; with a time, the answer begins later and says so. The events of a service or a node include those of its \
tasks. With -f, the command continues at another manager if one fails, without losing or repeating an event. -o json \
prints one object per line, and -o wide the index.";

/// Notes at the end of `why --help`.
const WHY_NOTES: &str = "\
Each line is a cause of the line above it, with what was observed and what to do. NAME is also an id or a prefix of \
one, or SERVICE.SLOT for a task; if objects of several kinds have that name, give the kind: service/web. \
certificate/NAME explains the certificate of a manager, a node or a user; NAME is also the id of a removed machine, \
the name of a removed user, or the first 8 digits of a key; if several have it, give the kind: certificate/user/ann. \
The exit code is 0 if the object is as desired or on its way, 1 if something is wrong, 3 if it does not exist. -o \
json and -o yaml print the same with stable codes.";

/// An object or a kind of objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectSelector {
    /// Empty for all kinds.
    pub noun: String,
    /// Empty for all objects.
    pub name: String,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EVENTS_NOTES)]
pub struct EventsArgs {
    /// Print new events as they happen, and no others without --since
    #[arg(long, short)]
    pub follow: bool,
    /// Print events since a time (RFC 3339, or how long ago, like 10m), or after an index (INDEX or INDEX.NUMBER)
    #[arg(long, value_name = "TIME|INDEX", value_parser = value::event_start)]
    pub since: Option<EventStart>,
    /// Print only events of this kind of object, or of one object
    #[arg(value_name = "NOUN[/NAME]", value_parser = noun_and_name)]
    pub object: Option<ObjectSelector>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = WHY_NOTES)]
pub struct WhyArgs {
    /// Service, task, node, network, volume, secret, config, or certificate/NAME
    #[arg(value_name = "[NOUN/]NAME", value_parser = name_with_noun)]
    pub object: ObjectSelector,
    /// Do not read the last lines of failed tasks
    #[arg(long)]
    pub no_logs: bool,
}

/// `service/web` or `service`.
fn noun_and_name(text: &str) -> Result<ObjectSelector, String> {
    let (noun, name) = text.split_once('/').unwrap_or((text, ""));
    if text.ends_with('/') || noun.is_empty() {
        return Err("give a noun like service, or an object like service/web".to_owned());
    }
    Ok(ObjectSelector { noun: singular(noun), name: name.to_owned() })
}

/// `service/web` or `web`.
pub fn name_with_noun(text: &str) -> Result<ObjectSelector, String> {
    match text.split_once('/') {
        None if !text.is_empty() => Ok(ObjectSelector { noun: String::new(), name: text.to_owned() }),
        Some((noun, name)) if !noun.is_empty() && !name.is_empty() => {
            Ok(ObjectSelector { noun: singular(noun), name: name.to_owned() })
        }
        _ => Err("give a name like web, or an object like service/web".to_owned()),
    }
}

/// Nouns as kubectl accepts them, in the plural too. The manager knows which exist.
fn singular(noun: &str) -> String {
    match noun {
        "registries" => "registry".to_owned(),
        _ => noun.strip_suffix('s').unwrap_or(noun).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_nouns_and_names() {
        let object = |noun: &str, name: &str| ObjectSelector { noun: noun.into(), name: name.into() };
        assert_eq!(noun_and_name("service/web"), Ok(object("service", "web")));
        assert_eq!(noun_and_name("nodes"), Ok(object("node", "")));
        assert_eq!(name_with_noun("web.1"), Ok(object("", "web.1")));
        assert_eq!(name_with_noun("services/web"), Ok(object("service", "web")));
        assert_eq!(name_with_noun("certificate/user/ann"), Ok(object("certificate", "user/ann")));
        for bad in ["", "/", "service/", "/web"] {
            assert!(noun_and_name(bad).is_err() && name_with_noun(bad).is_err(), "{bad}");
        }
    }
}
