//! Claims of a verified token: whether it is for a login that was begun here, and who
//! the user is.
//!
//! Invariants: issuer, audience, nonce and times are checked before anything else counts; a user is
//! (issuer, subject), however the provider's names change; groups that the provider leaves out for
//! their number are a refusal, never no groups. This module must not know of connections.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::jwt::Claims;
use vpnd_config::factor::Factors;
use vpnd_config::source::{EMAIL, Oidc, Source};
use vpnd_config::user_name;
use vpnd_ipc::gateway::idp::{
    AcceptAttributes, GroupName, Identity, LoggedOut, ProviderLogin, ProviderSession, SourceRefusal, Subject,
};
use vpnd_proto::control::{List, UserName};

/// The most that clocks may differ.
const SKEW_S: u64 = 60;
/// How old a token may be that has just been asked for.
const MAX_AGE_S: u64 = 600;
/// The claim that the address is the user's.
const EMAIL_VERIFIED: &str = "email_verified";
/// The longest subject (OpenID Connect Core §2).
const MAX_SUBJECT: usize = 255;

/// A token is not for this login.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("the token is of the issuer {0:?}, and not of this one")]
    Issuer(String),
    #[error("the token is for another client than 'client_id'")]
    Audience,
    #[error("the token is not of this login: its nonce is another")]
    Nonce,
    #[error("the token has expired or is not valid yet: compare the clocks")]
    Time,
    #[error("the user's last login at the provider is older than the gateway permits")]
    Age,
    #[error("the token has no {0}")]
    Missing(&'static str),
}

/// Checks that a token is the provider's, for this gateway and of now.
fn check_token(claims: &Claims, settings: &Oidc, now_s: u64) -> Result<(), ClaimError> {
    let issuer = text(claims, "iss").unwrap_or_default();
    if issuer != settings.issuer.as_str() {
        return Err(ClaimError::Issuer(issuer.chars().take(200).collect()));
    }
    let client = settings.client_id.as_str();
    let (is_among, are_several) = match claims.get("aud") {
        Some(Value::String(one)) => (one == client, false),
        Some(Value::Array(all)) => (all.iter().any(|one| one == client), all.len() > 1),
        _ => return Err(ClaimError::Missing("aud")),
    };
    let party = claims.get("azp");
    if !is_among || party.map_or(are_several, |party| party != client) {
        return Err(ClaimError::Audience);
    }
    let issued_s = time(claims, "iat").ok_or(ClaimError::Missing("iat"))?;
    if issued_s > now_s + SKEW_S || issued_s + MAX_AGE_S + SKEW_S < now_s {
        return Err(ClaimError::Time);
    }
    if time(claims, "nbf").is_some_and(|not_before_s| not_before_s > now_s + SKEW_S) {
        return Err(ClaimError::Time);
    }
    Ok(())
}

/// Checks an ID token of the login with this nonce (OpenID Connect Core §3.1.3.7).
pub(crate) fn check_login(
    claims: &Claims,
    settings: &Oidc,
    nonce: &str,
    now_s: u64,
) -> Result<(), ClaimError> {
    check_refreshed(claims, settings, now_s)?;
    if text(claims, "nonce") != Some(nonce) {
        return Err(ClaimError::Nonce);
    }
    Ok(())
}

/// Checks when the user was asked for credentials, if that was to be said (§3.1.3.7, 13 there).
pub(crate) fn check_age(claims: &Claims, max_age_s: Option<u64>, now_s: u64) -> Result<(), ClaimError> {
    let Some(max_age_s) = max_age_s else { return Ok(()) };
    let asked_s = time(claims, "auth_time").ok_or(ClaimError::Missing("auth_time"))?;
    if asked_s.saturating_add(max_age_s + SKEW_S) < now_s { Err(ClaimError::Age) } else { Ok(()) }
}

/// Checks an ID token that has come with a refresh token (§12.2 there): whose it is, the caller
/// compares.
pub(crate) fn check_refreshed(claims: &Claims, settings: &Oidc, now_s: u64) -> Result<(), ClaimError> {
    check_token(claims, settings, now_s)?;
    let expires_s = time(claims, "exp").ok_or(ClaimError::Missing("exp"))?;
    if expires_s + SKEW_S <= now_s { Err(ClaimError::Time) } else { Ok(()) }
}

/// The event of a logout token (OpenID Connect Back-Channel Logout 1.0 §2.4).
const LOGOUT: &str = "http://schemas.openid.net/event/backchannel-logout";

/// Checks a logout token (§2.6 there). Returns by what the user is known, and the token's number.
pub(crate) fn check_logout<'c>(
    claims: &'c Claims,
    settings: &Oidc,
    now_s: u64,
) -> Result<(LoggedOut, &'c str), ClaimError> {
    check_token(claims, settings, now_s)?;
    if claims.contains_key("exp") && time(claims, "exp").is_none_or(|expires_s| expires_s + SKEW_S <= now_s) {
        return Err(ClaimError::Time);
    }
    let event = claims.get("events").and_then(|events| events.get(LOGOUT));
    if !event.is_some_and(Value::is_object) {
        return Err(ClaimError::Missing("event of a logout"));
    }
    // Else an ID token could pass for one.
    if claims.contains_key("nonce") {
        return Err(ClaimError::Nonce);
    }
    let number = text(claims, "jti").filter(|number| !number.is_empty()).ok_or(ClaimError::Missing("jti"))?;
    let who = match claims.contains_key("sub") {
        true => subject(claims, settings).map(LoggedOut::Subject),
        false => session(claims, settings).map(LoggedOut::Session),
    };
    Ok((who.ok_or(ClaimError::Missing("sub or sid"))?, number))
}

/// Whether the user's claims are to be asked for, since a token lacks some.
pub(crate) fn are_incomplete(claims: &Claims, settings: &Oidc) -> bool {
    !claims.contains_key(&settings.user_claim)
        || lacks_verification(claims, settings)
        || !(claims.contains_key(&settings.group_claim) || are_left_out(claims, settings))
}

/// Adds claims from elsewhere to those of a token, which come first.
pub(crate) fn complete(claims: &mut Claims, more: Claims, settings: &Oidc) -> Result<(), ClaimError> {
    // They might be another user's (OpenID Connect Core §5.3.2).
    if text(&more, "sub").is_none() || text(&more, "sub") != text(claims, "sub") {
        return Err(ClaimError::Missing("user information of its subject"));
    }
    // That an address is verified concerns the address next to it (§5.1).
    if lacks_verification(claims, settings) {
        claims.remove(EMAIL);
        claims.remove(EMAIL_VERIFIED);
    }
    for (name, value) in more {
        claims.entry(name).or_insert(value);
    }
    Ok(())
}

/// The user that has logged in, by claims that were checked.
pub(crate) fn login(
    claims: &Claims,
    source: &Source,
    settings: &Oidc,
) -> Result<ProviderLogin, SourceRefusal> {
    let identity = Identity {
        subject: subject(claims, settings).ok_or(SourceRefusal::NoSubject)?,
        groups: groups(claims, source, settings)?,
        accept: AcceptAttributes::default(),
        name: Some(name(claims, source, settings).ok_or(SourceRefusal::NoName)?),
    };
    Ok(ProviderLogin {
        identity,
        factors: factors(claims, settings),
        auth_time_s: time(claims, "auth_time"),
        session: session(claims, settings),
    })
}

/// The user's permanent identity: a hash of issuer and subject, so that another provider in
/// the place of this one has other users.
pub(crate) fn subject(claims: &Claims, settings: &Oidc) -> Option<Subject> {
    let subject =
        text(claims, "sub").filter(|subject| !subject.is_empty() && subject.len() <= MAX_SUBJECT)?;
    let hex = of_issuer(subject, settings).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    Subject::new(hex).ok()
}

/// The browser's session at the provider.
fn session(claims: &Claims, settings: &Oidc) -> Option<ProviderSession> {
    let session = text(claims, "sid").filter(|session| !session.is_empty())?;
    Some(of_issuer(session, settings).into())
}

/// A hash of what only the issuer makes unique.
fn of_issuer(text: &str, settings: &Oidc) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(settings.issuer.as_str());
    hash.update([0]);
    hash.update(text);
    hash.finalize().into()
}

fn name(claims: &Claims, source: &Source, settings: &Oidc) -> Option<UserName> {
    let said = text(claims, &settings.user_claim)?;
    if settings.user_claim == EMAIL && !is_verified(claims, settings) {
        return None;
    }
    // Some providers' names have the realm already.
    let names = [user_name::canonical(said), user_name::canonical(&source.full_name(said))];
    let name = names.into_iter().flatten().find(|name| source.rule.matches(name))?;
    UserName::new(name).ok()
}

/// Whether the name is an address of which the claims don't say whose it is.
fn lacks_verification(claims: &Claims, settings: &Oidc) -> bool {
    let said = claims.get(EMAIL_VERIFIED).is_some_and(|said| !said.is_null());
    settings.user_claim == EMAIL && !settings.email_is_verified && !said
}

/// Whether the provider has checked that the address is the user's (OpenID Connect Core §5.1), who
/// could have entered another user's there. Some providers write the claim as text.
fn is_verified(claims: &Claims, settings: &Oidc) -> bool {
    match claims.get(EMAIL_VERIFIED) {
        None | Some(Value::Null) => settings.email_is_verified,
        Some(Value::Bool(is_verified)) => *is_verified,
        Some(said) => said == "true",
    }
}

fn groups(
    claims: &Claims,
    source: &Source,
    settings: &Oidc,
) -> Result<List<GroupName, { vpnd_ipc::gateway::idp::MAX_GROUPS }>, SourceRefusal> {
    let named: Vec<&str> = match claims.get(&settings.group_claim) {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
        _ if are_left_out(claims, settings) => return Err(SourceRefusal::TooManyGroups),
        _ => Vec::new(),
    };
    if named.len() > source.max_groups {
        return Err(SourceRefusal::TooManyGroups);
    }
    // No rule can name one that is longer.
    let mut groups: Vec<GroupName> = named.into_iter().filter_map(|name| GroupName::new(name).ok()).collect();
    groups.sort();
    groups.dedup();
    List::new(groups).map_err(|_| SourceRefusal::TooManyGroups)
}

/// Whether the provider names a place instead of the groups, since there are too many of them
/// (OpenID Connect Core §5.6.2, Microsoft Entra ID).
fn are_left_out(claims: &Claims, settings: &Oidc) -> bool {
    let elsewhere = claims.get("_claim_names").and_then(|names| names.get(&settings.group_claim));
    elsewhere.is_some() || claims.get("hasgroups").is_some_and(|has| *has != Value::Bool(false))
}

fn factors(claims: &Claims, settings: &Oidc) -> Factors {
    let methods = match claims.get("amr") {
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect::<Vec<_>>(),
        _ => Vec::new(),
    };
    let checked = methods.into_iter().map(|method| match method {
        "otp" => Factors::ONE_TIME_CODE,
        "mca" => Factors::APPROVAL,
        "mfa" => Factors::SEVERAL,
        // A key here is that of a client certificate, which no provider sees.
        _ => Factors::default(),
    });
    let context = text(claims, "acr").is_some_and(|acr| settings.mfa_acr.iter().any(|known| known == acr));
    let context = if context { Factors::SEVERAL } else { Factors::default() };
    checked.fold(context, Factors::and)
}

fn text<'c>(claims: &'c Claims, name: &str) -> Option<&'c str> {
    claims.get(name).and_then(Value::as_str)
}

/// A Unix time, which may have a fraction; none that a sum could overflow.
fn time(claims: &Claims, name: &str) -> Option<u64> {
    let seconds = claims.get(name)?.as_f64()?;
    (0.0..1e12).contains(&seconds).then_some(seconds as u64)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use serde_json::json;
    use vpnd_config::ServerConfig;
    use vpnd_config::source::SourceKind;

    const NOW: u64 = 1_800_000_000;

    fn source(more: &str) -> Source {
        let text = format!(
            "[tls]\ncertificate = 'a'\nkey = 'b'\n[tunnel]\npool_v4 = '10.86.0.0/16'\n[portal]\nenabled = true\n\
             certificate = 'c'\nkey = 'd'\nurl = 'https://vpn.example'\n[[source]]\nname = 'uni'\nkind = 'oidc'\n\
             realm = 'uni.example'\nissuer = 'https://login.example'\nclient_id = 'vpn'\n\
             client_secret_file = 's'\n{more}"
        );
        ServerConfig::parse(&text, "server.toml", Path::new("/")).unwrap().sources.remove(0)
    }

    fn settings(source: &Source) -> &Oidc {
        let SourceKind::Oidc(oidc) = &source.kind else { panic!("a provider") };
        oidc
    }

    /// A good token with one claim otherwise, or without it.
    fn claims(name: &str, value: Value) -> Claims {
        let good = json!({
            "iss": "https://login.example", "aud": "vpn", "sub": "1", "nonce": "n", "iat": NOW, "exp": NOW + 300,
            "preferred_username": "Ann", "groups": ["staff", "all", "staff"],
        });
        let Value::Object(mut claims) = good else { panic!("an object") };
        match value {
            Value::Null => drop(claims.remove(name)),
            value => drop(claims.insert(name.to_owned(), value)),
        }
        claims
    }

    #[test]
    fn a_token_is_for_one_login_of_this_gateway_and_of_now() {
        let source = source("");
        let check = |name: &str, value: Value| check_login(&claims(name, value), settings(&source), "n", NOW);
        for (name, value) in [
            ("x", json!(1)),
            ("aud", json!(["vpn"])),
            ("azp", json!("vpn")),
            ("iat", json!(NOW + SKEW_S)),
            ("iat", json!(NOW - MAX_AGE_S)),
            ("exp", json!(NOW - SKEW_S + 1)),
            ("nbf", json!(NOW)),
        ] {
            assert_eq!(check(name, value.clone()), Ok(()), "{name} {value}");
        }
        let mut several = claims("aud", json!(["vpn", "other"]));
        assert_eq!(check_login(&several, settings(&source), "n", NOW), Err(ClaimError::Audience));
        several.insert("azp".to_owned(), json!("vpn"));
        assert_eq!(check_login(&several, settings(&source), "n", NOW), Ok(()));
        let issuer = |text: &str| ClaimError::Issuer(text.to_owned());
        for (name, value, problem) in [
            ("iss", json!("https://login.example/"), issuer("https://login.example/")),
            ("iss", Value::Null, issuer("")),
            ("aud", json!("other"), ClaimError::Audience),
            ("aud", json!([]), ClaimError::Audience),
            ("aud", json!(7), ClaimError::Missing("aud")),
            ("azp", json!("other"), ClaimError::Audience),
            ("nonce", json!("m"), ClaimError::Nonce),
            ("nonce", Value::Null, ClaimError::Nonce),
            ("exp", json!(NOW - SKEW_S), ClaimError::Time),
            ("exp", Value::Null, ClaimError::Missing("exp")),
            ("exp", json!("soon"), ClaimError::Missing("exp")),
            ("iat", json!(NOW + SKEW_S + 1), ClaimError::Time),
            ("iat", json!(NOW - MAX_AGE_S - SKEW_S - 1), ClaimError::Time),
            ("iat", json!(-1), ClaimError::Missing("iat")),
            ("iat", json!(1e300), ClaimError::Missing("iat")),
            ("nbf", json!(NOW + SKEW_S + 1), ClaimError::Time),
        ] {
            assert_eq!(check(name, value.clone()), Err(problem), "{name} {value}");
        }
    }

    #[test]
    fn a_login_is_as_new_as_it_was_to_be() {
        let check = |said: Value, max_age_s| check_age(&claims("auth_time", said), max_age_s, NOW);
        assert_eq!(check(Value::Null, None), Ok(()), "nobody has asked");
        assert_eq!(check(json!(NOW - 1_000_000), None), Ok(()));
        assert_eq!(check(json!(NOW - 300 - SKEW_S), Some(300)), Ok(()));
        assert_eq!(check(json!(NOW - 301 - SKEW_S), Some(300)), Err(ClaimError::Age));
        for unsaid in [Value::Null, json!("now"), json!(-1)] {
            assert_eq!(check(unsaid, Some(300)), Err(ClaimError::Missing("auth_time")));
        }
    }

    #[test]
    fn a_user_is_the_issuers_subject_with_a_name_of_the_source() {
        let source = source("max_groups = 3\n");
        let login_of = |name: &str, value: Value| login(&claims(name, value), &source, settings(&source));
        let ann = login_of("x", json!(1)).unwrap();
        let groups: Vec<&str> = ann.identity.groups.iter().map(|group| &**group).collect();
        assert_eq!(groups, ["all", "staff"]);
        assert_eq!(ann.identity.name.as_deref(), Some("ann@uni.example"));
        let renamed = login_of("preferred_username", json!("ANNE@uni.example")).unwrap().identity;
        assert_eq!(renamed.name.as_deref(), Some("anne@uni.example"));
        assert_eq!(renamed.subject, ann.identity.subject);
        let other = login_of("sub", json!("2")).unwrap().identity;
        assert_ne!(other.subject, ann.identity.subject);
        let elsewhere =
            Oidc { issuer: "https://other.example".parse().unwrap(), ..settings(&source).clone() };
        let ann = claims("x", json!(1));
        assert_ne!(subject(&ann, &elsewhere), subject(&ann, settings(&source)));
        for (name, value, refusal) in [
            ("sub", Value::Null, SourceRefusal::NoSubject),
            ("sub", json!(""), SourceRefusal::NoSubject),
            ("sub", json!("x".repeat(256)), SourceRefusal::NoSubject),
            ("preferred_username", Value::Null, SourceRefusal::NoName),
            ("preferred_username", json!("ann@other.example"), SourceRefusal::NoName),
            ("preferred_username", json!("a;b"), SourceRefusal::NoName),
            ("groups", json!(["1", "2", "3", "4"]), SourceRefusal::TooManyGroups),
        ] {
            assert_eq!(login_of(name, value.clone()), Err(refusal), "{name} {value}");
        }
    }

    #[test]
    fn an_address_is_a_name_only_if_it_is_verified() {
        let assumed = "user_claim = 'email'\nemail_is_verified = true\n";
        let [source, assuming] = ["user_claim = 'email'\n", assumed].map(source);
        let outcome_of = |source: &Source, said: Option<Value>| {
            let mut claims = claims("email", json!("ann@uni.example"));
            said.into_iter().for_each(|said| drop(claims.insert(EMAIL_VERIFIED.to_owned(), said)));
            let name = login(&claims, source, settings(source)).map(|login| login.identity.name);
            (name.is_ok(), are_incomplete(&claims, settings(source)))
        };
        let (accepted, refused, asked) = ((true, false), (false, false), (false, true));
        for (said, strict, assumed) in [
            (Some(json!(true)), accepted, accepted),
            (Some(json!("true")), accepted, accepted),
            (Some(json!(false)), refused, refused),
            (Some(json!("false")), refused, refused),
            (Some(json!("False")), refused, refused),
            (Some(json!("")), refused, refused),
            (Some(json!(0)), refused, refused),
            (Some(json!(1)), refused, refused),
            (Some(json!([true])), refused, refused),
            (Some(Value::Null), asked, accepted),
            (None, asked, accepted),
        ] {
            assert_eq!(outcome_of(&source, said.clone()), strict, "{said:?}");
            assert_eq!(outcome_of(&assuming, said.clone()), assumed, "{said:?}");
        }
        // Another claim needs none.
        let plain = self::source("");
        assert_eq!(outcome_of(&plain, None), accepted);
    }

    #[test]
    fn omitted_groups_and_no_groups_are_distinguished() {
        let source = source("");
        let outcome_of = |name: &str, value: Value| {
            let mut claims = claims("groups", Value::Null);
            claims.insert(name.to_owned(), value);
            (are_incomplete(&claims, settings(&source)), login(&claims, &source, settings(&source)))
        };
        let refused = (false, Err(SourceRefusal::TooManyGroups));
        assert_eq!(outcome_of("_claim_names", json!({"groups": "src1"})), refused);
        assert_eq!(outcome_of("hasgroups", json!(true)), refused);
        let (is_incomplete, none) = outcome_of("_claim_names", json!({"address": "src1"}));
        assert!(is_incomplete && none.unwrap().identity.groups.is_empty());
    }

    #[test]
    fn userinfo_claims_need_the_same_subject_and_rank_second() {
        let more = |subject: &str| claims("sub", json!(subject));
        let mut of_token = claims("preferred_username", json!("eve"));
        of_token.remove("groups");
        let source = source("");
        let settings = settings(&source);
        assert!(complete(&mut of_token.clone(), more("2"), settings).is_err());
        assert!(complete(&mut of_token.clone(), claims("sub", Value::Null), settings).is_err());
        complete(&mut of_token, more("1"), settings).unwrap();
        assert_eq!(
            (of_token["preferred_username"].as_str(), of_token["groups"].is_array()),
            (Some("eve"), true)
        );
    }

    #[test]
    fn that_an_address_is_verified_concerns_no_address_from_elsewhere() {
        let source = source("user_claim = 'email'\n");
        let name_of = |token: Option<Value>, more: Value| {
            let mut claims = claims("email", json!("victim@uni.example"));
            token.into_iter().for_each(|said| drop(claims.insert(EMAIL_VERIFIED.to_owned(), said)));
            let mut other = claims.clone();
            other.insert(EMAIL.to_owned(), json!("eve@uni.example"));
            other.insert(EMAIL_VERIFIED.to_owned(), more);
            complete(&mut claims, other, settings(&source)).unwrap();
            login(&claims, &source, settings(&source)).ok().and_then(|login| login.identity.name)
        };
        let name = |name: &str| UserName::new(name.to_owned()).ok();
        assert_eq!(name_of(None, json!(true)), name("eve@uni.example"));
        assert_eq!(name_of(Some(Value::Null), json!(true)), name("eve@uni.example"));
        assert_eq!(name_of(None, json!(false)), None);
        assert_eq!(name_of(Some(json!(true)), json!(false)), name("victim@uni.example"));
    }

    #[test]
    fn factors_are_those_that_the_provider_names() {
        let source = source("mfa_acr = ['https://refeds.org/profile/mfa']\n");
        let text_of = |name: &str, value: Value| factors(&claims(name, value), settings(&source)).to_string();
        assert_eq!(text_of("amr", json!(["pwd", "otp"])), "otp");
        assert_eq!(text_of("amr", json!(["mfa", "swk", 7])), "mfa");
        assert_eq!(text_of("amr", json!("otp")), "");
        assert_eq!(text_of("acr", json!("https://refeds.org/profile/mfa")), "mfa");
        assert_eq!(text_of("acr", json!("https://refeds.org/profile/sfa")), "");
    }

    #[test]
    fn a_logout_is_the_providers_for_this_gateway_of_now_and_no_login() {
        let source = source("");
        let check = |name: &str, value: Value| {
            let mut claims = claims("nonce", Value::Null);
            claims.insert("events".to_owned(), json!({ LOGOUT: {} }));
            claims.insert("jti".to_owned(), json!("7"));
            match value {
                Value::Null => drop(claims.remove(name)),
                value => drop(claims.insert(name.to_owned(), value)),
            }
            check_logout(&claims, settings(&source), NOW).map(|(who, number)| (who, number.to_owned()))
        };
        let (who, number) = check("x", json!(1)).unwrap();
        let subject = super::subject(&claims("x", json!(1)), settings(&source)).unwrap();
        assert_eq!((who, number.as_str()), (LoggedOut::Subject(subject.clone()), "7"));
        assert!(check("exp", Value::Null).is_ok());
        assert_eq!(check("sid", json!("s")).unwrap().0, LoggedOut::Subject(subject), "the user, if named");
        for (name, value) in [
            ("iss", json!("https://another.example")),
            ("aud", json!("another")),
            ("iat", json!(NOW - 3_600)),
            ("iat", json!(NOW + 3_600)),
            ("exp", json!(NOW - 3_600)),
            ("events", Value::Null),
            ("events", json!({ "another": {} })),
            ("events", json!({ LOGOUT: 1 })),
            ("nonce", json!("n")),
            ("jti", Value::Null),
            ("jti", json!("")),
            ("sub", Value::Null),
            ("sub", json!("")),
        ] {
            assert!(check(name, value.clone()).is_err(), "{name}: {value}");
        }
    }

    #[test]
    fn a_logout_without_a_user_is_that_of_a_session_whose_login_was_here() {
        let source = source("");
        let without_user = |sid: Value| {
            let mut claims = claims("sub", Value::Null);
            claims.remove("nonce");
            claims.insert("events".to_owned(), json!({ LOGOUT: {} }));
            claims.insert("jti".to_owned(), json!("7"));
            claims.insert("sid".to_owned(), sid);
            check_logout(&claims, settings(&source), NOW).map(|(who, _)| who)
        };
        let session = |sid: Value| login(&claims("sid", sid), &source, settings(&source)).unwrap().session;
        let of_login = session(json!("s")).unwrap();
        assert_eq!(without_user(json!("s")), Ok(LoggedOut::Session(of_login)));
        assert_ne!(session(json!("t")), Some(of_login));
        for none in [json!(""), json!(7), Value::Null] {
            assert_eq!(without_user(none.clone()), Err(ClaimError::Missing("sub or sid")));
            assert_eq!(session(none), None);
        }
    }
}
