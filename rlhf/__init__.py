"""The RLHF algorithms on tensors, without files of the pipeline, tracker or orchestrator.

To understand PPO read in this order: masked, logprobs, kl, reward_shaping, advantages, ppo_losses
(the mathematics), then rollouts, ppo, ppo_update (the loop). `python -m rlhf.walkthrough` shows one
step with its numbers.

Foundations
    shapes               names for the tensor shapes, checked in every test
    masked               sums, means and standardisation over real tokens
    padding              lists of ids to rectangular tensors, and positions
    positions            how many tokens a row may have where positions are a table
    packing              several sequences in one row, none of which sees another
    special_ids          the ids of the end of a response, of other ends, and of padding
    batches              a rollout and a PPO batch: tensors that belong together
    named_seeds, seeding one seed, many named random streams
    draws                the uniform numbers that sampling draws tokens with
    bits                 which instructions the libraries may use; portable or native
    cpu_kernels          kernels of ours in the place of torch's
    mkl                  the kernels of matrix products, the same whoever made the processor
    compute              device, threads, precision
    distributed          several processes that compute one result, each a share of the rows
    divided              tensors of which each process holds its rows
    sharding             a model in training, whole in every process or divided among them
    silent_hosts         the end of connections to hosts that no longer answer
    thread_order         results that do not depend on the number of threads
    params               the settings of each algorithm, with the recipe as defaults

Mathematics
    logprobs             log-probabilities and entropy of a policy's tokens
    kl                   estimates of the KL divergence, its exact value, its controller
    reward_shaping       from one score per response to one reward per token
    advantages           GAE, RLOO, GRPO and REINFORCE++; explained variance
    ppo_losses           clipped policy loss, value loss, KL as a loss, entropy
    importance_weights   weights of tokens that another policy has sampled
    preference_loss      Bradley-Terry loss of the reward model
    dpo_loss             the loss of direct preference optimisation
    language_model_loss  next-token loss of pre-training and SFT
    best_of_n            the best-scored of n responses: unbiased means, its bound on the KL
    calibration          whether the reward model's probabilities mean what they say
    intervals            confidence intervals of means and win rates
    grouped_intervals    of shares over pairs of which several have one prompt

Models
    models               policies and tokenizers from folders
    logits               hidden states and logits of whole sequences, where they are read
    tile_products        large products with factors in bfloat16, on a CPU that has tiles for it
    token_chunks         what is read off logits, without the logits of a batch ever existing
    recomputed_layers    layers whose activations are computed again in the backward pass
    reward_models        a trunk, a head with one label, and a normaliser of its scores
    reward_heads         the head, on the trunk of every family
    actor_critic         a policy with its value function, or alone
    ppo_actor            the one that PPO's settings ask for
    ppo_models           the models of a round of PPO, from their folders to the device
    classifiers          reward models that others have trained, read through text
    ensembles            several reward models as one scorer
    lora                 low-rank adapters, in place and merged in the end
    lora_targets         which layers can have one of their own
    frozen               models that no step changes, in the precision they are computed in
    model_folders        folders in Hugging Face format, and the error for other folders
    chat, templates      text to ids and back; chat templates in a child process with limits
    template_args        arguments of a chat template, written into it
    conversations        conversations as ids, and which of them an assistant wrote
    classifier_padding   the pad token of a reward model's folder, for other libraries
    last_block           the last block of a model, computed only where it is read
    head_products        logits from bfloat16 factors, with float32 sums, on a GPU
    attention_masks      what each token of a sequence sees, worked out on the host
    trunk_passes         a trunk over whole sequences: plain, or as a GPU repeats it
    recorded_passes      what is recorded of each trunk, and when
    pass_recordings      one recorded pass, without gradients or with them
    cuda_graphs          what was asked of a GPU once, and is then asked for as a whole
    decoding_cache       a key-value cache with room for the tokens to come
    decoding_attention   attention of one query a row, by what reads its keys fastest
    gpu_attention        the same by a kernel of our own for a GPU
    packed_weights       weights laid out for products with few rows, on a CPU
    pass_sizes           how many tokens are read at a time where nothing is trained
    decoding_graph       decoding steps that a GPU repeats by itself, from one recording
    token_draws          tokens drawn from logits, each with a uniform number of its own
    generation           sampling responses with a key-value cache
    responses            a response to each of many prompts, with draws of its own
    dialogue             responses in pieces, turn by turn, for people who talk to a policy
    pair_rows            both responses of a pair in one row, their common beginning once
    scoring              scores of texts by a reward model
    optimisers, muon     the training step that all loops share
    gradient_sums        gradients of large weights, added where they are kept, on a CPU
    lower_gradient_sums  gradients of weights, added in float32 on a GPU that computes in bfloat16
    replaced_forwards    forward passes of modules, exchanged for a while
    shorter_backward     norms, rotations and gates, differentiated in fewer steps on a CPU
    picked_logprobs      log-probabilities of tokens, whose gradient takes one tensor of logits

Loops
    pretrain             the embedded base model and its tokenizer
    sft                  supervised fine-tuning on demonstrations
    reward               reward-model training on pairs
    dpo                  direct preference optimisation on pairs, a baseline of PPO
    samplers             who samples a rollout in the policy's place: a server of its weights
    rollouts             responses with everything that PPO needs to know about them
    ppo                  one PPO round
    ppo_update           passes of minibatches over one rollout
    ppo_objective        the losses of a micro-batch, each with a backward pass of its own
    weight_average       the average of a policy's weights over a round
    ppo_metrics          what an iteration measures, and the curve of each metric
    rule_rewards         rules on the text beside or in place of a learned reward
    sentiment_words      the word list of one of the rules
    reward_functions     a reward function of the user's own, in a process of its own
    reward_function_child the program of that process
    evaluation           exact KL and diversity on held-out prompts

Safety
    ppo_guards           checks that stop a PPO round before it does harm
    family_checks        whether a policy can do all that the pipeline will ask of it
    self_checks          properties that a real run verifies on its own models
    stopping             the errors with which training stops itself
    manifests            sizes and hashes of a folder's files, to verify them by
    checkpoints          the state of a training run on disk, whole or not at all

    walkthrough          one real PPO step, explained
"""
