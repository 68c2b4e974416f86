//! A directory asked step by step, for an administrator.

use super::groups::MAX_LEVELS;
use super::{Directory, exactly_one};
use crate::ldap::message::Scope;
use crate::trial::{End, Steps, end_of_connection};
use vpnd_config::ldap_filter::Values;
use vpnd_config::source::{Bind, Source, SourceServer};
use vpnd_ipc::gateway::idp::{Identity, SourceRefusal};

/// A user's name that no directory has, to search for.
const NOBODY: &str = "vpnd-source-test";

impl Directory {
    /// Goes the way of a re-check. Without a user it ends well once the search has been made.
    pub(crate) async fn trial(
        &self,
        source: &Source,
        server: &SourceServer,
        user: Option<&str>,
        steps: &mut Steps,
    ) -> Result<Option<Identity>, End> {
        let mut connection = self.connect(server).await.map_err(end_of_connection)?;
        steps.good("tls", format!("its certificate is good for {}", server.host));
        let (Bind::Service { dn, .. }, Some(password)) = (&self.settings.bind, &self.password) else {
            steps.good("bind", "users bind with their own password (user_dn): the rest shows a login");
            return Ok(None);
        };
        self.bind_as_gateway(&mut connection, dn, password)
            .await
            .map_err(|error| ("bind", error.to_string()))?;
        steps.good("bind", format!("as {dn}"));
        let name = user.map(|user| source.name_of(user));
        let values = Values { user: name.as_deref().unwrap_or(NOBODY), dn: "" };
        let base = &self.settings.base;
        let found = self.find(&mut connection, source, base, Scope::Subtree, values).await;
        let found = found.map_err(|error| ("base", error.to_string()))?;
        steps.good("base", base.as_str());
        let Some(name) = name else { return Ok(None) };
        let entry = exactly_one(found).map_err(|error| ("entry", error.to_string()))?;
        let entry = entry.map_err(|refusal| ("entry", self.words(refusal, &name)))?;
        steps.good("entry", entry.dn.as_str());
        let groups = self.groups(&mut connection, source, &entry, &name).await;
        let groups = groups.map_err(|error| ("groups", error.to_string()))?;
        if let Ok(groups) = &groups {
            let words = |(name, is_through_another): (&str, bool)| match is_through_another {
                true => format!("{name} (through another)"),
                false => name.to_owned(),
            };
            let listed: Vec<String> = groups.iter().map(words).collect();
            let none = format!("none by '{}' or group_base", self.settings.group_attribute);
            steps.good("groups", if listed.is_empty() { none } else { listed.join("; ") });
        }
        let identity = self.identity(source, &entry, groups);
        let identity = identity.map_err(|refusal| (step(refusal), self.words(refusal, &name)))?;
        steps.good("subject", &*identity.subject);
        if let Some(name) = &identity.name {
            steps.good("user", format!("{name} in rules, access profiles and 'vpnd user'"));
        }
        Ok(Some(identity))
    }

    fn words(&self, refusal: SourceRefusal, name: &str) -> String {
        match refusal {
            SourceRefusal::UnknownUser => {
                format!("no entry below the base has the name '{name}' by the filter")
            }
            SourceRefusal::SeveralUsers => format!("several entries have the name '{name}' by the filter"),
            SourceRefusal::NoSubject => {
                format!("the entry has not exactly one value of '{}' (subject)", self.settings.subject)
            }
            SourceRefusal::Disabled => "the entry says that the account is disabled or locked".to_owned(),
            SourceRefusal::TooManyGroups => {
                format!(
                    "the user is in more groups than max_groups, or they nest deeper than {MAX_LEVELS} levels"
                )
            }
            SourceRefusal::WrongPassword | SourceRefusal::NotProved | SourceRefusal::NoName => {
                "wrong password".to_owned()
            }
        }
    }
}

const fn step(refusal: SourceRefusal) -> &'static str {
    match refusal {
        SourceRefusal::TooManyGroups => "groups",
        SourceRefusal::Disabled => "state",
        _ => "subject",
    }
}
