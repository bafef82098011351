package conformance

const ruleTokens = "tokens are strictly larger for every later acquisition of a key; never 0; at most 2^63-1."
