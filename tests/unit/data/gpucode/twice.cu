// The smallest GPU code that a shared object can carry.
__global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }
