//! Command and environment of a container: the spec's over the image's, by Docker's rules.

use warren_image::RunConfig;

use crate::container::ContainerSpec;
use crate::error::Error;

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// `TERM` in a terminal, and its value.
const TERMINAL: (&str, &str) = ("TERM", "xterm");

/// The command with its arguments. Replacing the entrypoint drops the image's arguments, which belong to the
/// old one.
///
/// # Errors
/// [`Error::InvalidSpec`] if the command is empty.
pub(crate) fn command_line(spec: &ContainerSpec, image: &RunConfig) -> Result<Vec<String>, Error> {
    let (entrypoint, inherited) = match &spec.command {
        Some(command) => (command, &Vec::new()),
        None => (&image.entrypoint, &image.cmd),
    };
    let arguments = spec.args.as_ref().unwrap_or(inherited);
    let words: Vec<String> = entrypoint.iter().chain(arguments).cloned().collect();
    match words.first() {
        Some(first) if !first.is_empty() => Ok(words),
        _ => Err(Error::invalid_field("command", "empty, and the image has no command")),
    }
}

/// The variable that a process with a terminal gets.
pub(crate) fn terminal_variable() -> String {
    format!("{}={}", TERMINAL.0, TERMINAL.1)
}

/// `NAME=value` pairs, each name once, in the order of first appearance.
pub(super) fn environment(spec: &ContainerSpec, image: &RunConfig) -> Vec<String> {
    let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let terminal = spec.tty.then(|| own(TERMINAL.0, TERMINAL.1));
    let defaults = [own("PATH", DEFAULT_PATH), own("HOSTNAME", &spec.hostname)];
    let of_image = image.env.iter().filter_map(|pair| pair.split_once('='));
    let of_image = of_image.map(|(name, value)| own(name, value));
    let mut merged: Vec<(String, String)> = Vec::new();
    for (name, value) in defaults.into_iter().chain(terminal).chain(of_image).chain(spec.env.iter().cloned())
    {
        match merged.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => merged.push((name, value)),
        }
    }
    merged.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}
