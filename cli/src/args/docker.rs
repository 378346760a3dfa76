//! Command lines of Docker that mean exactly a command of Warren. They are written in its form before they are parsed,
//! so their errors and their help are those of that command. All others are refused by [`super::unsupported`].

use clap::{Arg, Command};

use super::completion::flag_of;

/// Commands of Docker and of Warren; what follows them is the same.
const SAME: &[(&str, &str)] = &[
    ("attach", "task attach"),
    ("cp", "task cp"),
    ("exec", "task exec"),
    ("images", "image ls"),
    ("logs", "service logs"),
    ("port-forward", "task port-forward"),
    ("pull", "image pull"),
    ("restart", "task restart"),
];

/// Commands of Docker that can follow `container`.
const OF_CONTAINERS: [&str; 9] = ["attach", "cp", "exec", "inspect", "logs", "ps", "restart", "run", "stats"];

/// Flags of `docker swarm init` and of `manager init`.
const INIT_FLAGS: &[(&str, &str)] = &[
    ("--advertise-addr", "--advertise"),
    ("--data-path-addr", "--data-address"),
    ("--default-addr-pool", "--cluster-range"),
    ("--force-new-cluster", "--force-new-cluster"),
    ("--listen-addr", "--listen"),
];

/// Flags of `docker swarm join` and of `worker join`.
const JOIN_FLAGS: &[(&str, &str)] =
    &[("--advertise-addr", "--advertise"), ("--data-path-addr", "--data-address"), ("--token", "--token")];

/// Restart policies of Docker and of Warren.
const RESTART_POLICIES: [(&str, &str); 4] =
    [("always", "any"), ("no", "none"), ("on-failure", "on-failure"), ("unless-stopped", "any")];

/// The same command line (without the program name) in Warren's form; `None` if it is none of Docker's, or cannot be
/// meant exactly. `root` is the definition of the commands.
pub fn translate(root: &Command, words: &[String]) -> Option<Vec<String>> {
    let start = first_positional(root, root, words)?;
    let (before, rest) = words.split_at(start);
    let mut rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    if rest[0] == "container" {
        rest.remove(0);
        match rest.first_mut()? {
            verb @ (&mut "ls" | &mut "list") => *verb = "ps",
            verb if OF_CONTAINERS.contains(verb) => {}
            _ => return None,
        }
    }
    let translated = match rest.as_slice() {
        ["ps", flags @ ..] => Some(tasks(flags)),
        ["run", words @ ..] => run(root, words),
        ["service", "create", words @ ..] => create(root, words),
        ["stats", flags @ ..] => stats(flags),
        ["swarm", "init", flags @ ..] => renamed("manager init", INIT_FLAGS, flags),
        ["swarm", "join", flags @ ..] => renamed("worker join", JOIN_FLAGS, flags),
        ["swarm", "unlock"] => renamed("manager unlock", &[], &[]),
        ["swarm", "unlock-key", flags @ ..] => {
            renamed("cluster unlock-key", &[("--rotate", "--rotate")], flags)
        }
        [first, ..] if SAME.iter().any(|(docker, _)| docker == first) => {
            let (_, warren) = SAME.iter().find(|(docker, _)| docker == first)?;
            Some(warren.split(' ').chain(rest[1..].iter().copied()).map(str::to_owned).collect())
        }
        // `container inspect web`.
        _ if rest.len() + start < words.len() => Some(rest.iter().map(ToString::to_string).collect()),
        _ => None,
    };
    Some(before.iter().cloned().chain(translated?).collect())
}

/// Position of the first word that is neither a flag of the command nor the value of one.
fn first_positional(root: &Command, command: &Command, words: &[impl AsRef<str>]) -> Option<usize> {
    let mut position = 0;
    while let Some(word) = words.get(position).map(AsRef::as_ref) {
        if !word.starts_with('-') || word == "--" {
            return Some(position);
        }
        position += 1 + usize::from(takes_next_word(root, command, word)?);
    }
    None
}

fn known_flag<'a>(root: &'a Command, command: &'a Command, word: &str) -> Option<&'a Arg> {
    flag_of(command, word).or_else(|| flag_of(root, word).filter(|flag| flag.is_global_set()))
}

fn takes_value(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

/// Whether the next word is the value of the flag, or of the last of several letters. `None` for an unknown flag.
fn takes_next_word(root: &Command, command: &Command, word: &str) -> Option<bool> {
    if word.starts_with("--") {
        return Some(takes_value(known_flag(root, command, word)?) && !word.contains('='));
    }
    for (position, letter) in word.char_indices().skip(1) {
        if takes_value(known_flag(root, command, &format!("-{letter}"))?) {
            return Some(position + letter.len_utf8() == word.len());
        }
    }
    Some(false)
}

/// `docker ps` lists what runs, and what ended only with `--all`.
fn tasks(flags: &[&str]) -> Vec<String> {
    let mut words = vec!["task".to_owned(), "ls".to_owned()];
    let is_all = |flag: &&str| ["--all", "-a", "-aq", "-qa"].contains(flag);
    let asks_state = flags.iter().any(|flag| flag.contains("desired-state="));
    if !flags.iter().any(is_all) && !asks_state {
        words.extend(["--filter".to_owned(), "desired-state=running".to_owned()]);
    }
    for flag in flags {
        match is_all(flag) {
            true if flag.contains('q') => words.push("-q".to_owned()),
            true => {}
            false => words.push((*flag).to_owned()),
        }
    }
    words
}

/// `docker stats` without names.
fn stats(flags: &[&str]) -> Option<Vec<String>> {
    let flag = |flag: &&str| match *flag {
        "--no-stream" => Some("--once".to_owned()),
        "--help" | "-h" => Some("--help".to_owned()),
        _ => None,
    };
    let flags = flags.iter().map(flag).collect::<Option<Vec<_>>>()?;
    Some(["service".to_owned(), "top".to_owned()].into_iter().chain(flags).collect())
}

/// The command with the names that its flags have in Warren; `None` with a flag that is not in the list.
fn renamed(command: &str, names: &[(&str, &str)], words: &[&str]) -> Option<Vec<String>> {
    let rename = |word: &&str| {
        if !word.starts_with("--") || *word == "--help" {
            return Some((*word).to_owned());
        }
        let (name, value) = word.split_once('=').map_or((*word, None), |(name, value)| (name, Some(value)));
        let (_, warren) = names.iter().find(|(docker, _)| *docker == name)?;
        Some(value.map_or((*warren).to_owned(), |value| format!("{warren}={value}")))
    };
    let words = words.iter().map(rename).collect::<Option<Vec<_>>>()?;
    Some(command.split(' ').map(str::to_owned).chain(words).collect())
}

/// `service create --name web nginx:1.27 COMMAND ARGS`: the image without its flag, and arguments without `--`.
fn create(root: &Command, words: &[&str]) -> Option<Vec<String>> {
    let create = root.find_subcommand("service")?.find_subcommand("create")?;
    let at = first_positional(root, create, words)?;
    let (flags, rest) = words.split_at(at);
    let (image, args) = rest.split_first()?;
    let has = |name: &str| flags.iter().any(|flag| flag.split('=').next() == Some(name));
    if *image == "--" || !has("--name") || has("--image") {
        return None;
    }
    service_create(root, create, flags.iter().map(ToString::to_string).collect(), image, args)
}

/// `None` if the words behind the image begin with a flag of `service create`: it may be meant as one.
fn service_create(
    root: &Command,
    create: &Command,
    flags: Vec<String>,
    image: &str,
    args: &[&str],
) -> Option<Vec<String>> {
    let is_flag = |word: &&str| word.starts_with('-') && known_flag(root, create, word).is_some();
    let args = match args {
        ["--", args @ ..] => args,
        [first, ..] if is_flag(first) => return None,
        args => args,
    };
    let words = ["service", "create"].into_iter().map(str::to_owned).chain(flags);
    let words = words.chain(["--image".to_owned(), image.to_owned()]);
    let separator = (!args.is_empty()).then(|| "--".to_owned());
    Some(words.chain(separator).chain(args.iter().map(ToString::to_string)).collect())
}

/// `run --detach --name web IMAGE ARGS` is a service with one task that ends for good when its process does, unless
/// `--restart` says otherwise. In the foreground, without a name, or with `--rm` there is no such service.
fn run(root: &Command, words: &[&str]) -> Option<Vec<String>> {
    let create = root.find_subcommand("service")?.find_subcommand("create")?;
    let (mut flags, mut restart, mut has_name, mut is_detached) = (Vec::new(), "none", false, false);
    let mut words = words.iter().copied();
    let image = loop {
        let word = words.next()?;
        if !word.starts_with('-') {
            break word;
        }
        if word == "--help" {
            return Some(["service", "create", "--help"].map(str::to_owned).into());
        }
        for flag in separate_flags(create, word) {
            let (name, inline) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag.as_str(), None),
            };
            let mut value = || inline.clone().or_else(|| words.next().map(str::to_owned));
            match name {
                "-d" | "--detach" => is_detached = true,
                "--restart" => {
                    let policy = value()?;
                    restart = RESTART_POLICIES.iter().find(|(docker, _)| *docker == policy)?.1;
                }
                "-v" | "--volume" => {
                    let volume = value()?;
                    let kind = if volume.starts_with(['/', '.', '~']) { "--bind" } else { "--volume" };
                    flags.extend([kind.to_owned(), volume]);
                }
                _ => {
                    let known = known_flag(root, create, name)?;
                    has_name |= name == "--name";
                    match takes_value(known) {
                        true => flags.extend([name.to_owned(), value()?]),
                        false => flags.push(flag),
                    }
                }
            }
        }
    };
    if !is_detached || !has_name {
        return None;
    }
    flags.extend(["--detach".to_owned(), format!("--restart={restart}")]);
    service_create(root, create, flags, image, &words.collect::<Vec<_>>())
}

/// Flags of one letter stand apart then, a value behind one as `-p=80:80`: `-dp80:80` are `-d` and that.
fn separate_flags(create: &Command, word: &str) -> Vec<String> {
    if word.starts_with("--") {
        return vec![word.to_owned()];
    }
    let (mut flags, mut letters) = (Vec::new(), word[1..].chars());
    while let Some(letter) = letters.next() {
        let flag = format!("-{letter}");
        let has_value = letter == 'v' || flag_of(create, &flag).is_some_and(takes_value);
        let value: String = if has_value { letters.by_ref().collect() } else { String::new() };
        let value = value.strip_prefix('=').unwrap_or(&value);
        flags.push(if value.is_empty() { flag } else { format!("{flag}={value}") });
    }
    flags
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    fn translated(line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        translate(&Cli::command(), &words).map(|words| words.join(" "))
    }

    #[test]
    fn commands_of_docker_are_commands_of_warren() {
        for (docker, warren) in [
            ("ps", "task ls --filter desired-state=running"),
            ("ps -a", "task ls"),
            ("ps -aq --no-trunc", "task ls -q --no-trunc"),
            ("-o json ps -f node=n1", "-o json task ls --filter desired-state=running -f node=n1"),
            ("container ls --all", "task ls"),
            (
                "--context=prod --stale exec -it web.1 sh -c x",
                "--context=prod --stale task exec -it web.1 sh -c x",
            ),
            ("container exec web.1 ps", "task exec web.1 ps"),
            ("container inspect web.1", "inspect web.1"),
            ("logs -f --tail 5 web", "service logs -f --tail 5 web"),
            ("cp web.1:/etc .", "task cp web.1:/etc ."),
            ("stats --no-stream", "service top --once"),
            ("images -q", "image ls -q"),
            ("pull nginx:1.27", "image pull nginx:1.27"),
            ("swarm init --advertise-addr 10.0.0.1", "manager init --advertise 10.0.0.1"),
            ("swarm join --token=T 10.0.0.1:8080", "worker join --token=T 10.0.0.1:8080"),
            ("swarm unlock", "manager unlock"),
            ("swarm unlock-key --rotate", "cluster unlock-key --rotate"),
            ("service create --name web nginx:1.27", "service create --name web --image nginx:1.27"),
            (
                "service create --name=web -p 80:80 --replicas 2 nginx:1.27 nginx -g x",
                "service create --name=web -p 80:80 --replicas 2 --image nginx:1.27 -- nginx -g x",
            ),
            ("service create --name web nginx -- -q", "service create --name web --image nginx -- -q"),
            (
                "run -d --name web -p 80:80 nginx:1.27",
                "service create --name web -p 80:80 --detach --restart=none --image nginx:1.27",
            ),
            (
                "run -dtp8080:80 --name=web --restart=always -v data:/d -v /srv:/s:ro -e A=1 nginx:1.27 x -y",
                "service create -t -p 8080:80 --name web --volume data:/d --bind /srv:/s:ro -e A=1 --detach \
                 --restart=any --image nginx:1.27 -- x -y",
            ),
        ] {
            assert_eq!(translated(docker).as_deref(), Some(warren), "{docker}");
        }
    }

    #[test]
    fn what_cannot_be_meant_exactly_is_left_alone() {
        for line in [
            "",
            "service ls",
            "task exec web.1 ps",
            "service create web --image nginx",
            "service create --name web --image nginx -- x",
            "service create web nginx:1.27",
            "service create --nmae web nginx:1.27",
            // Docker passes it to the container, and somebody may mean the service.
            "service create --name web nginx:1.27 --replicas 2",
            "run nginx",
            "run -it --name web nginx sh",
            "run -d nginx",
            "run -d --rm --name web nginx",
            "run -d --name web --restart on-failure:3 nginx",
            "run -d --name web -h host nginx",
            "swarm leave",
            "swarm join --availability drain --token T a:1",
            "stats web",
            "container prune",
            "container",
        ] {
            assert_eq!(translated(line), None, "{line}");
        }
    }
}
