//! `lowtide man [VERB]`.

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::Cli;
use crate::console::output::Output;
use crate::failure::exit::{Exit, Failure};

pub(crate) fn run(verb: Option<&str>, output: &Output) -> Result<Exit, Failure> {
    let mut command = Cli::command();
    command.build();
    let known: Vec<String> = command
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .map(|c| c.get_name().to_owned())
        .collect();
    let page = match verb {
        None => Man::new(command),
        Some(verb) => {
            match command.find_subcommand(verb).filter(|_| known.iter().any(|k| k == verb)) {
                Some(found) => Man::new(found.clone()).title(format!("lowtide-{verb}")),
                None => {
                    let known = known.join(", ");
                    return Err(Failure::usage(format!(
                        "there is no verb `{verb}`: the verbs are {known}"
                    )));
                }
            }
        }
    };
    let mut text = Vec::new();
    page.render(&mut text).map_err(Failure::failed)?;
    output.bytes(&text)?;
    Ok(Exit::Done)
}
